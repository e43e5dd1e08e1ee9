"""What the site has besides the pages of this folder: the repository's own READMEs, and the API, from its docstrings.

MkDocs calls these functions (`hooks` in mkdocs.yml). Pages keep links that work in the repository; here they are turned
into links of the site.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]

# Pages from elsewhere in the repository.
ELSEWHERE = {
    "index.md": "README.md",
    "benchmarks.md": "benchmarks/README.md",
    "am-lfs.png": "benchmarks/am-lfs.png",
    "search.png": "benchmarks/search.png",
    "search-answers.png": "benchmarks/search-answers.png",
    "search-replayed.png": "benchmarks/search-replayed.png",
    "results.md": "results/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}

# What a user imports, in the order of the data flow.
MODULES = (
    "autoseg.metrics.segmentation",
    "autoseg.metrics.formula",
    "autoseg.losses.surrogate_loss",
    "autoseg.losses.build",
    "autoseg.losses.hand_made",
    "autoseg.losses.curves",
    "autoseg.losses.surrogate",
    "autoseg.search.sampler",
    "autoseg.search.ppo2",
    "autoseg.search.settings",
    "autoseg.training.settings",
    "autoseg.search.steps",
    "autoseg.search.runner",
    "autoseg.data.folder",
    "autoseg.data.voc",
    "autoseg.data.cityscapes",
    "autoseg.data.synthetic",
    "autoseg.data.prepare",
    "autoseg.data.prepared",
    "autoseg.data.split",
    "autoseg.data.augment",
    "autoseg.data.loaders",
    "autoseg.training.networks",
    "autoseg.training.loop",
    "autoseg.training.trial",
    "autoseg.training.run",
    "autoseg.training.evaluation",
)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that do not lie in this folder."""
    for page, place in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / place)))
    files.append(File.generated(config, "api.md", content=api()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to files of the repository into links of the site."""
    place = ELSEWHERE.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return re.sub(r"(\]\()([^)#\s]+)", lambda found: found[1] + _link(found[2], Path(place).parent), markdown)


def _link(target: str, folder: Path) -> str:
    if "://" in target:
        return target
    path = (ROOT / folder / target).resolve().relative_to(ROOT).as_posix()
    pages = {place: page for page, place in ELSEWHERE.items()}
    return pages.get(path, path.removeprefix("docs/"))


# ---------------------------------------------------------------------------------------------------------------- API


def api() -> str:
    """Return the reference of all public names, in markdown; no module is imported."""
    parts = ["# API\n", "From the docstrings; every example in them is run by the tests.\n"]
    for module in MODULES:
        tree = ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8"))
        parts += [f"## {module}\n", _docstring(tree)]
        for node in _public(tree):
            if isinstance(node, ast.ClassDef):
                made = _fields(f"{module}.{node.name}", node) or _signature(f"{module}.{node.name}", _initialiser(node))
                parts += [f"### class {node.name}\n", made, _docstring(node)]
                for method in _public(node):
                    parts += [_signature(f"{node.name}.{method.name}", method), _docstring(method)]
            else:
                parts += [f"### {node.name}\n", _signature(f"{module}.{node.name}", node), _docstring(node)]
    return "\n".join(part for part in parts if part)


def _public(parent: Any) -> Iterator[Any]:
    """Yield the classes and functions with a docstring that are for users: those in `__all__`, where there is one."""
    chosen = [node.value for node in parent.body if isinstance(node, ast.Assign) and _names(node) == ["__all__"]]
    for node in parent.body:
        wanted = isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
        if wanted and ast.get_docstring(node) and all(node.name in ast.literal_eval(names) for names in chosen):
            yield node


def _names(node: ast.Assign) -> list[str]:
    return [getattr(target, "id", "") for target in node.targets]


def _fields(name: str, node: ast.ClassDef) -> str:
    """Return how a data class is made."""
    if not any("dataclass" in ast.unparse(each) for each in node.decorator_list):
        return ""
    fields = [ast.unparse(part) for part in node.body if isinstance(part, ast.AnnAssign)]
    return f"```python\n{name}({', '.join(fields)})\n```\n"


def _initialiser(node: ast.ClassDef) -> Any:
    return next((part for part in node.body if getattr(part, "name", "") == "__init__"), None)


def _signature(name: str, node: Any) -> str:
    if node is None:
        return ""
    decorators = {getattr(each, "id", getattr(each, "attr", "")) for each in node.decorator_list}
    if decorators & {"property", "cached_property"}:
        text = name
    else:
        arguments = [argument for argument in ast.unparse(node.args).split(", ") if argument not in ("self", "cls")]
        text = f"{name}({', '.join(arguments)})"
    returned = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    return f"```python\n{text}{returned}\n```\n"


def _docstring(node: Any) -> str:
    """Return a docstring as markdown: examples and programs fenced, arguments as a list."""
    blocks = (ast.get_docstring(node) or "").split("\n\n")
    return "\n\n".join(_block(block) for block in blocks) + "\n"


def _block(block: str) -> str:
    first = block.partition("\n")[0]
    if first.startswith(">>>"):
        return f"```pycon\n{block}\n```"
    if "```" in block:
        return block
    block = re.sub(r"(`[^`]*`)|<", lambda found: found[1] or "&lt;", block)
    block = block.replace("](", "]\\(")  # N[0, 1](mu) is no link
    if first not in ("Args:", "Returns:", "Raises:"):
        return block
    items = re.sub(r"\n {8,}", " ", block.partition("\n")[2])
    named = re.sub(r"^ {4}(\w[\w, ]*):", r"- `\1`:", items, flags=re.MULTILINE)
    return f"*{first.rstrip(':')}*\n\n{named}"
