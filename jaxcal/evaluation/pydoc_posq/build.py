"""Build the files of PyDoc-PosQ from the standard library of the running CPython (3.11.7 made the shipped ones).

    python -m jaxcal.evaluation.pydoc_posq.build --tokenizer all-MiniLM-L6-v2/tokenizer.json --output DIR

Sources are read with `ast`, never imported. The output depends on the sources and the tokenizer alone; README.md in
this folder states the construction in words.
"""

import argparse
import ast
import collections
import dataclasses
import functools
import inspect
import itertools
import json
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

from jaxcal.errors import InvalidInput, MissingDependency
from jaxcal.evaluation.pydoc_posq import GROUPS, VARIANTS, rotation_by_group

Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

TOKEN_LIMITS = {"short": (300, 480), "long": (1200, 2000)}
SPECIAL_TOKENS = 2  # [CLS] and [SEP]
MIN_SUMMARY_WORDS = 4
MIN_BODY_WORDS = 25
MAX_OVERLAP = 0.8  # share of common words above which two summaries ask the same thing

SKIPPED_PACKAGES = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages"}
# Modules with a notice of another holder are left out, so that one licence covers every text shipped.
FOREIGN_NOTICE = re.compile(
    r"copyright\W+(\(c\)\s*)?(19|20)\d\d|\(c\)\s*copyright|copyright\W+(\(c\)\s*)?[A-Z]\w+ [A-Z]|__copyright__"
    r"|^\W*\(c\) (19|20)\d\d|SPDX-|contributor agreement|permission to use|permission is hereby granted",
    re.IGNORECASE,
)
# Files that later releases of CPython mark as holding code from uvloop, without a notice in 3.11.
FOREIGN_MODULES = {"asyncio.constants", "asyncio.events", "asyncio.sslproto"}
SIGNATURE = re.compile(r"^[\w.]+\(|->|=>|\s=\s|\w\[,")
# Stock phrases that fit any class or function, so that nobody could look for this one.
GENERIC = re.compile(r"^(see |initiali[sz]e self|constructor|create a new instance|same as )", re.I)


@dataclasses.dataclass(frozen=True)
class Section:
    """One docstring: `heading` names what it documents, `summary` is its first line, `body` the rest."""

    heading: str
    summary: str
    body: str
    askable: bool = False

    def text(self, asked: bool) -> str:
        """Return the section as it stands in a document; the summary of an asked section is its query, so left out."""
        parts = (self.body,) if asked else (self.summary, self.body)
        return self.heading + "\n" + "\n\n".join(part for part in parts if part)


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Consecutive sections of one module that make a document: which are asked, and where its rotations begin."""

    begin: int
    asked: frozenset[int]
    rotations: tuple[int, int, int]
    texts: tuple[str, ...]


def words(text: str) -> list[str]:
    """Split a text into casefolded words, dropping punctuation."""
    return re.findall(r"\w+", text.casefold())


def count_words(text: str) -> int:
    """Count what white space separates, leaving out bare punctuation."""
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def public_modules(root: Path) -> Iterator[tuple[str, str]]:
    """Yield (dotted name, source) of every public module under `root` that carries no foreign notice, sorted."""
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        parts = path.relative_to(root).with_suffix("").parts
        names = parts[:-1] if parts[-1] == "__init__" else parts
        if SKIPPED_PACKAGES & set(parts) or any(name.startswith("_") or not name.isidentifier() for name in names):
            continue
        name = ".".join(names)
        source = path.read_text(encoding="utf-8", errors="replace")
        notices = [line for line in source.splitlines() if FOREIGN_NOTICE.search(line)]
        if name and name not in FOREIGN_MODULES and all("Python Software Foundation" in line for line in notices):
            yield name, source


def heading_of(node: Documented) -> str:
    """Write the line that heads a section: `name(argument names)` or `class Name(bases)`."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    a = node.args
    star = [f"*{a.vararg.arg}"] if a.vararg else ["*"] if a.kwonlyargs else []
    names = [arg.arg for arg in a.posonlyargs + a.args] + star + [arg.arg for arg in a.kwonlyargs]
    names += [f"**{a.kwarg.arg}"] if a.kwarg else []
    return f"{node.name}({', '.join(name for name in names if name not in ('self', 'cls'))})"


def documented_nodes(node: ast.AST) -> Iterator[Documented]:
    """Yield classes, functions and methods below `node` in source order; functions are not entered."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Documented):
            yield child
        if isinstance(child, ast.ClassDef | ast.If | ast.Try):
            yield from documented_nodes(child)


def read_sections(name: str, source: str) -> list[Section]:
    """Return the docstrings of a module in source order, its own first."""
    tree = ast.parse(source)
    found = [(name, tree), *((heading_of(node), node) for node in documented_nodes(tree))]
    sections = []
    for heading, node in found:
        raw = ast.get_docstring(node, clean=False)
        if not raw or not raw.strip():
            continue
        lines = [line.rstrip() for line in inspect.cleandoc(raw).splitlines()]
        text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
        first, _, rest = text.partition("\n\n")
        # A first paragraph of several lines is no summary line; the whole text is then body.
        summary, body = (first, rest.strip()) if "\n" not in first else ("", text)
        sections.append(Section(heading, summary, body))
    return sections


def is_sensible(section: Section) -> bool:
    """Tell whether a summary can be asked and its body can answer: lengths, no signature, no stock phrase."""
    prose = "\n".join(line for line in section.body.splitlines() if not line.lstrip().startswith((">>>", "...")))
    return (
        count_words(section.summary) >= MIN_SUMMARY_WORDS
        and count_words(prose) >= MIN_BODY_WORDS
        and not SIGNATURE.search(section.summary)
        and not GENERIC.search(section.summary)
        and not section.summary.endswith((":", ","))
    )


def mark_askable(modules: dict[str, list[Section]]) -> dict[str, list[Section]]:
    """Mark the sections that may be asked: sensible, and unlike anything else in the whole material.

    A summary or body that stands in any other docstring of any module is refused (case, spacing and punctuation do not
    count), and so is a summary that shares more than `MAX_OVERLAP` of its words with another summary.
    """
    sections = [section for module in modules.values() for section in module]
    material = " | ".join(" ".join(words(part)) for s in sections for part in (s.heading, s.summary, s.body))
    summaries = collections.Counter(frozenset(words(section.summary)) for section in sections if section.summary)

    def is_unique(section: Section) -> bool:
        if any(material.count(" ".join(words(part))) != 1 for part in (section.summary, section.body)):
            return False
        own = frozenset(words(section.summary))
        others = (other for other in summaries if other != own)
        return summaries[own] == 1 and all(len(own & o) <= MAX_OVERLAP * len(own | o) for o in others)

    def mark(section: Section) -> Section:
        return dataclasses.replace(section, askable=is_sensible(section) and is_unique(section))

    return {name: [mark(section) for section in module] for name, module in modules.items()}


def nearest_boundaries(lengths: list[int], share: float, count: int = 3) -> list[int]:
    """Return the `count` sections whose start lies nearest to `share` of the document, in source order."""
    starts = list(itertools.accumulate(lengths, initial=0))[:-1]
    distance = [abs(start - share * sum(lengths)) for start in starts]
    return sorted(sorted(range(1, len(lengths)), key=distance.__getitem__)[:count])


def choose_rotations(characters: list[int], tokens: list[int], asked: frozenset[int]):
    """Return the rotation starts that put the most asked sections once in each third, and those sections.

    The rule is about characters; it is asked of tokens too, so that no tokenizer's density turns a case round.
    """
    best = ((0, 0, 0), frozenset())
    for second, third in itertools.product(*(nearest_boundaries(characters, share) for share in (1 / 3, 2 / 3))):
        starts = (0, second, third)
        served = frozenset(
            i for i in asked if rotation_by_group(characters, starts, i) and rotation_by_group(tokens, starts, i, 0)
        )
        if second < third and len(served) > len(best[1]):
            best = (starts, served)
    return best


def make_stretch(sections: list[Section], begin: int, end: int, count_tokens: Callable[[str], int]) -> Stretch | None:
    """Make a document of `sections[begin:end]`, or return None if no rotations serve any of its askable sections.

    A section the rotations do not serve gets its summary back, which changes the lengths: hence the loop.
    """
    asked = frozenset(i for i, section in enumerate(sections[begin:end]) if section.askable)
    while asked:
        texts = tuple(section.text(i in asked) for i, section in enumerate(sections[begin:end]))
        rotations, served = choose_rotations([*map(len, texts)], [*map(count_tokens, texts)], asked)
        if served == asked:
            return Stretch(begin, asked, rotations, texts)
        asked = served
    return None


def cut_module(sections: list[Section], count_tokens: Callable[[str], int], limits: tuple[int, int]) -> list[Stretch]:
    """Cut a module into the disjoint stretches that ask the most sections; each within the token limits."""
    low, high = limits
    fewest = [count_tokens(section.text(section.askable)) for section in sections]
    best: list[tuple[int, tuple[Stretch, ...]]] = [(0, ())]  # best[i]: most asked among the first i sections
    for end in range(1, len(sections) + 1):
        best.append(best[-1])
        size = SPECIAL_TOKENS
        for begin in range(end - 1, -1, -1):
            size += fewest[begin]
            if size > high:
                break
            most = best[begin][0] + sum(section.askable for section in sections[begin:end])
            if end - begin < 3 or most <= best[end][0]:
                continue
            stretch = make_stretch(sections, begin, end, count_tokens)
            if stretch and low <= sum(map(count_tokens, stretch.texts)) + SPECIAL_TOKENS <= high:
                option = (best[begin][0] + len(stretch.asked), (*best[begin][1], stretch))
                best[end] = max(best[end], option, key=lambda pair: pair[0])
    return list(best[-1][1])


def read_modules(root: Path) -> dict[str, list[Section]]:
    """Return the sections of every public module under `root`, the askable ones marked."""
    return mark_askable({name: read_sections(name, source) for name, source in public_modules(root)})


def build(
    modules: dict[str, list[Section]], count_tokens: Callable[[str], int], limits: tuple[int, int]
) -> tuple[list[dict], list[dict]]:
    """Return the document and the query records of one variant.

    Args:
        modules: what `read_modules` returned.
        count_tokens: number of tokens of a text, special tokens excluded.
        limits: least and most tokens of a document, special tokens included.
    """
    documents, queries = [], []
    for name, sections in modules.items():
        for stretch in cut_module(sections, count_tokens, limits):
            document = f"d{len(documents):03d}"
            documents.append(
                {"id": document, "source": name, "rotations": stretch.rotations, "sections": stretch.texts}
            )
            for i in sorted(stretch.asked):
                text = sections[stretch.begin + i].summary
                queries.append({"id": f"q{len(queries):03d}", "text": text, "document": document, "section": i})
    return documents, queries


def to_json_lines(records: list[dict]) -> str:
    """Write records one a line."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def token_counter(path: Path) -> Callable[[str], int]:
    """Return a function that counts the tokens of a text, special tokens excluded.

    Raises:
        MissingDependency: `tokenizers` is not installed.
        InvalidInput: there is no tokenizer file at `path`.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise MissingDependency("Building PyDoc-PosQ needs the package 'tokenizers': pip install tokenizers") from error
    if not path.is_file():
        raise InvalidInput(f"No tokenizer file at '{path}': pass --tokenizer the tokenizer.json of all-MiniLM-L6-v2.")
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    # The published file stores truncation and padding to 128 tokens, which would falsify every count.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return functools.cache(lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids))


def main(arguments: list[str] | None = None) -> None:
    """Build both variants of PyDoc-PosQ from the standard library's sources and print their counts."""
    parser = argparse.ArgumentParser(prog="python -m jaxcal.evaluation.pydoc_posq.build", description=main.__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json of all-MiniLM-L6-v2")
    parser.add_argument("--source", type=Path, default=Path(sysconfig.get_path("stdlib")), help="standard library")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder to write to")
    options = parser.parse_args(arguments)
    count_tokens = token_counter(options.tokenizer)
    options.output.mkdir(parents=True, exist_ok=True)
    modules = read_modules(options.source)
    print(f"standard library of Python {sys.version.split()[0]}")
    for variant in VARIANTS:
        documents, queries = build(modules, count_tokens, TOKEN_LIMITS[variant])
        text = to_json_lines(documents + queries)
        (options.output / f"{variant}.jsonl").write_text(text, encoding="utf-8", newline="\n")
        sizes = [sum(map(count_tokens, d["sections"])) + SPECIAL_TOKENS for d in documents]
        span = f"{min(sizes)} to {max(sizes)}, mean {sum(sizes) / len(sizes):.0f} tokens" if sizes else "nothing"
        print(f"{variant}: {len(documents)} documents ({span}), {len(queries)} queries x {len(GROUPS)} positions")


if __name__ == "__main__":
    main()
