"""Reads a walkthrough: its sections, its pitfalls and its folded hints."""

import re

from grader.chapters import Chapter

DIAGRAM = re.compile(r"^```mermaid\n.*?^```\n", re.S | re.M)
FOLD = re.compile(r"<details>\s*<summary>(.*?)</summary>(.*?)</details>", re.S)


def sections(text: str, level: int) -> dict[str, str]:
    """The text below each heading of this level, by heading; `#` in a code block is no heading."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    fenced = False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        mark, _, heading = line.partition(" ")
        if not fenced and mark == "#" * level:
            lines = found.setdefault(heading.strip(), [])
        else:
            lines.append(line)
    return {heading: "\n".join(lines) for heading, lines in found.items()}


def hints(chapter: Chapter, exercise: str) -> list[str]:
    """The hints for an exercise, the gentlest first."""
    text = chapter.walkthrough.read_text(encoding="utf-8")
    section = sections(sections(text, 2)["Hints"], 3).get(exercise, "")
    return [body.strip() for _, body in FOLD.findall(section)]


def for_terminal(text: str, unfold: bool) -> str:
    """A walkthrough without its diagrams, folded answers reduced to their questions or not."""

    def opened(fold: re.Match) -> str:
        question = f"> {' '.join(fold[1].split())}"
        return f"{question}\n\n{fold[2].strip()}" if unfold else question

    return FOLD.sub(opened, DIAGRAM.sub("*(a diagram; see the file on a page)*\n", text))
