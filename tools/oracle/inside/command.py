"""Runs ``vllm serve`` up to the moment where it would start processes, and no further."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest import mock

from tools.oracle.inside.report import Record, failure, shorten


class _Accepted(BaseException):
    """Every check passed; nothing may catch this on the way out."""


def _accept(*args: object, **kwargs: object) -> NoReturn:
    raise _Accepted


def try_command(trial: Record) -> Record:
    """Verdict on ``trial["argv"]`` (from ``serve`` on) under ``trial["env"]``."""
    os.environ.update(trial["env"])
    sys.argv = ["vllm", *trial["argv"]]
    state: dict[str, Any] = {"stage": "parse", "usage": "", "config": None}
    with _held_back(state):
        from vllm.entrypoints.cli.main import main

        try:
            main()
        except _Accepted:
            return {"verdict": "accepted", "stage": "done", "config": _summary(state["config"])}
        except SystemExit as error:
            if state["usage"]:
                return failure("parse", error) | {"message": shorten(state["usage"]), "where": ""}
            return failure(state["stage"], error)
        except Exception as error:
            return failure(state["stage"], error)
    return {"verdict": "rejected", "stage": "parse", "message": "the command ended without serving"}


@contextmanager
def _held_back(state: dict[str, Any]) -> Iterator[None]:
    """Replace what opens sockets or starts processes, and note how far the command came."""
    import vllm.entrypoints.cli.serve as serve
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    create = EngineArgs.create_engine_config

    def create_engine_config(self: EngineArgs, *args: Any, **kwargs: Any) -> Any:
        state["stage"] = "config"
        state["config"] = create(self, *args, **kwargs)
        state["stage"] = "launch"
        return state["config"]

    def error(self: argparse.ArgumentParser, message: str) -> NoReturn:
        state["usage"] = message
        raise SystemExit(2)

    validate = serve.ServeSubcommand.validate

    def validated(self: Any, args: argparse.Namespace) -> None:
        state["stage"] = "validate"
        validate(self, args)

    replaced: list[tuple[object, str, Callable[..., Any]]] = [
        (EngineArgs, "create_engine_config", create_engine_config),
        (argparse.ArgumentParser, "error", error),
        (serve.ServeSubcommand, "validate", validated),
        (serve, "run_dp_supervisor", _configure),
        (serve, "setup_multiprocess_prometheus", lambda: None),
        (AsyncLLM, "from_vllm_config", _accept),
        *((serve, name, _accept) for name in _LAUNCHERS if hasattr(serve, name)),
        *((module, "create_server_socket", _socket) for module in _socket_modules()),
    ]
    with ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


_LAUNCHERS = ("CoreEngineProcManager", "MultiprocExecutor", "launch_core_engines")


def _socket_modules() -> list[Any]:
    """Modules of this release that open the server's socket."""
    modules = [sys.modules.get("vllm.entrypoints.openai.api_server")]
    modules.append(sys.modules.get("vllm.entrypoints.launchers.launcher"))
    return [module for module in modules if hasattr(module, "create_server_socket")]


def _socket(*args: object, **kwargs: object) -> Any:
    return SimpleNamespace(close=lambda: None)


def _configure(args: argparse.Namespace) -> NoReturn:
    """What each server of a data-parallel supervisor does first."""
    from vllm import AsyncEngineArgs

    AsyncEngineArgs.from_cli_args(args).create_engine_config()
    raise _Accepted


def _summary(config: Any) -> Record:
    parallel, scheduler = config.parallel_config, config.scheduler_config
    return {
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "data_parallel_size": parallel.data_parallel_size,
        "worker": parallel.worker_cls,
        "scheduler": str(scheduler.scheduler_cls),
        "block_size": config.cache_config.block_size,
        "max_model_len": config.model_config.max_model_len,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "graph_sizes": config.compilation_config.cudagraph_capture_sizes,
    }
