import logging


# At import, bitsandbytes logs which kernels it could not load. The package's own commands silence it, too (`trl_consistency/cli.py`).
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
