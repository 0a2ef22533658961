from types import SimpleNamespace

import pytest
import torch
from accelerate.data_loader import IterableDatasetShard
from datasets import Dataset

from trl_consistency.data.repeated_stream import CountedStream
from trl_consistency.losses.row_losses import RowLosses
from trl_consistency.trainer.row_evaluation import EvaluatedRows


@pytest.mark.parametrize("rows", [1, 4, 5, 8])
def test_rows_that_fill_up_the_batches_of_two_processes_are_not_counted(rows):
    stream = CountedStream(Dataset.from_dict({"value": list(range(rows))}).to_iterable_dataset())
    shards = [IterableDatasetShard(stream, batch_size=2, num_processes=2, process_index=rank) for rank in range(2)]
    of_ranks = [[row["value"] for row in shard] for shard in shards]
    assert len(of_ranks[0]) == len(of_ranks[1]) == -(-rows // 4) * 2
    evaluated = EvaluatedRows(SimpleNamespace(gather_for_metrics=lambda batch: batch))
    for start in range(0, len(of_ranks[0]), 2):  # accelerate puts together the batches of the processes
        batch = [value for rank in of_ranks for value in rank[start : start + 2]]
        evaluated.add({"loss": RowLosses(torch.tensor(batch), torch.ones(len(batch)))})
    assert evaluated.by_name(stream.rows)["loss"].sums.tolist() == list(range(rows))
