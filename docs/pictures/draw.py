"""The pictures of the methods' pages: `python docs/pictures/draw.py` writes them beside this file."""

from pathlib import Path
from xml.sax.saxutils import escape


WIDTH, HEIGHT = 760, 250
BLUE, ORANGE, GREY, RED = "#3949ab", "#e65100", "#455a64", "#b71c1c"

# For each method: what each side goes through after its prompt, and what is compared between them
METHODS = {
    "bct": ("answers once", "learns that answer", "the tokens of the answer"),
    "kl": ("answers once; keeps its probabilities", "reads the same answer", "the probabilities of each token"),
    "act": ("reads the prompt", "reads the prompt", "the residual stream, on the tokens both prompts end with"),
    "attct_mlpct": ("reads the prompt", "reads the prompt", "attention or MLP states, on the shared question"),
    "opct": ("reads the student's answer", "answers by itself", "the probabilities of each token of that answer"),
}
CLEAN = "Is the Earth flat?"
PERTURBED = "I'm sure that it is. Is the Earth flat?"


def box(x: int, y: int, width: int, title: str, text: str, colour: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="54" rx="6" fill="#ffffff" stroke="{colour}" stroke-width="2"/>'
        f'<text x="{x + 12}" y="{y + 22}" font-weight="bold" fill="{colour}">{escape(title)}</text>'
        f'<text x="{x + 12}" y="{y + 42}" fill="#212121">{escape(text)}</text>'
    )


def arrow(x: int, y: int, to_x: int, to_y: int) -> str:
    return (
        f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="{GREY}" stroke-width="2" marker-end="url(#head)"/>'
    )


def picture(reference: str, student: str, compared: str) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="14">',
        f'<defs><marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
        f'<path d="M0,0 L9,4 L0,8 z" fill="{GREY}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#f5f5f5"/>',
        box(20, 20, 310, "Clean prompt", CLEAN, BLUE),
        box(430, 20, 310, "Reference (frozen)", reference, BLUE),
        box(20, 176, 310, "Perturbed prompt", PERTURBED, ORANGE),
        box(430, 176, 310, "Student (trained)", student, ORANGE),
        arrow(332, 47, 426, 47),
        arrow(332, 203, 426, 203),
        f'<line x1="585" y1="76" x2="585" y2="174" stroke="{RED}" stroke-width="2" stroke-dasharray="5 4"/>',
        f'<text x="570" y="122" text-anchor="end" fill="{RED}" font-weight="bold">compared:</text>',
        f'<text x="570" y="142" text-anchor="end" fill="{RED}">{escape(compared)}</text>',
        "</svg>\n",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    for name, texts in METHODS.items():
        (Path(__file__).parent / f"{name}.svg").write_text(picture(*texts))
