"""Engines for supervised training and evaluation, with mixed precision and gradient accumulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import reference.idist as idist
from reference.engine.events import Events, State
from reference.engine.loop import Engine
from reference.idist import context
from reference.utils import to_device

if TYPE_CHECKING:
    from reference.metrics import Metric

PrepareBatch = Callable[..., tuple[Any, Any]]


def prepare_batch(
    batch: Any, device: torch.device | None = None, non_blocking: bool = False
) -> tuple[Any, Any]:
    """The first two items of a batch, with their tensors on the device."""
    x, y = batch[0], batch[1]
    return to_device(x, device, non_blocking), to_device(y, device, non_blocking)


def create_supervised_trainer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Callable[[Any, Any], Tensor],
    device: torch.device | str | None = None,
    non_blocking: bool = False,
    *,
    prepare_batch: PrepareBatch = prepare_batch,
    output_transform: Callable[[Any, Any, Any, Tensor], Any] = lambda x, y, y_pred, loss: loss.detach(),
    amp_mode: str | None = None,
    scaler: bool | torch.amp.GradScaler | None = None,
    gradient_accumulation_steps: int = 1,
    loader: Any = None,
) -> Engine:
    """An engine that trains: forward, loss, backward, optimizer step.

    Nothing in a step waits for the device, except the fp16 scaler's own check of the gradients.

    Args:
        model: what `idist.auto_model` returned, or any module. It is put into training mode whenever a step finds
            it in evaluation mode.
        optimizer: what `idist.auto_optim` returned. On XLA its `step` also reduces the gradients.
        loss_fn: `loss_fn(y_pred, y)`, a 0-d tensor: the mean over the batch.
        device: where batches go; default: where the model's parameters are.
        non_blocking: copy from pinned memory without waiting.
        prepare_batch: `prepare_batch(batch, device=..., non_blocking=...)` returns `(x, y)`.
        output_transform: what becomes `state.output`. The default is the loss as a tensor on the device, so that
            only who reads its value waits for it.
        amp_mode: `"fp16"`, `"bf16"`, `"amp"` (fp16 on CUDA, bf16 elsewhere) or None for full precision.
        scaler: scales the loss so that fp16 gradients don't vanish. Default and True: make one if the mode is fp16
            (it is `state.scaler`, to be put into checkpoints); False: none; or one of your own.
        gradient_accumulation_steps: take an optimizer step every so many iterations and at the end of each epoch,
            with the mean gradient of the group. The length of the epoch must be known.
        loader: of `idist.auto_dataloader`, the one that the engine will run on: every sample of a global batch counts
            the same, also where ranks hold different numbers of them (a data set that the batch size does not divide,
            with `drop_last=False`). Samples that a rank only repeats are cut off, so a rank may do a step with no
            sample; x, y and y_pred must be tensors. The loss in `state.output` is then this rank's part of it: its
            average over the ranks is the mean loss of the global batch.

    Raises:
        ValueError: unknown mode, fp16 on XLA, a scaler without a mode, fewer than one accumulation step, a loader
            whose sampler does not tell the shares.
    """
    target = _device(model, device)
    dtype = _amp_dtype(amp_mode, target)
    scaler = _scaler(scaler, dtype, target)
    if not isinstance(gradient_accumulation_steps, int) or gradient_accumulation_steps < 1:
        raise ValueError(
            f"gradient_accumulation_steps must be at least 1, got {gradient_accumulation_steps!r}"
        )
    if loader is not None and not hasattr(loader.sampler, "share"):
        raise ValueError(
            f"loader: {type(loader.sampler).__name__} does not tell how samples are shared out: use idist.auto_dataloader"
        )
    module = idist.unwrap(_uncompiled(model))

    def step(engine: Engine, batch: Any) -> Any:
        if not module.training:
            model.train()
        x, y = prepare_batch(batch, device=target, non_blocking=non_blocking)
        weight = 1.0
        if loader is not None:
            own, everyone = loader.sampler.share(engine.data_position, loader.batch_size)
            x, y, weight = x[:own], y[:own], own * loader.sampler.num_replicas / everyone
        index, size = _group(engine.state, gradient_accumulation_steps)
        last = index == size - 1
        if index == 0:
            optimizer.zero_grad()
        with nullcontext() if last else _no_sync(model):
            with _autocast(target, dtype):
                y_pred = model(x)
                if loader is None:
                    loss = loss_fn(y_pred, y)
                else:
                    # with no sample the mean is nan, but the backward pass must meet those of the other ranks
                    loss = loss_fn(y_pred, y) * weight if weight else y_pred.sum()
            part = loss if size == 1 else loss / size
            (part if scaler is None else scaler.scale(part)).backward()
        if last:
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
        engine.state.accumulating = not last
        return output_transform(x, y, y_pred, loss)

    def guarded_step(engine: Engine, batch: Any) -> Any:
        try:
            return step(engine, batch)
        except RuntimeError:  # entered only now, as every step would pay for it
            with context.current().translated("the all-reduce of the gradients"):
                raise

    trainer = Engine(guarded_step)
    trainer.state.scaler = scaler
    return trainer


def create_supervised_evaluator(
    model: nn.Module,
    metrics: Mapping[str, Metric] | None = None,
    device: torch.device | str | None = None,
    non_blocking: bool = False,
    *,
    prepare_batch: PrepareBatch = prepare_batch,
    output_transform: Callable[[Any, Any, Any], Any] = lambda x, y, y_pred: (y_pred, y),
    amp_mode: str | None = None,
) -> Engine:
    """An engine that evaluates, in evaluation mode and without gradients.

    It calls the module inside DistributedDataParallel, so ranks may have different numbers of batches, or none.
    All ranks must run it: when it starts, they get rank 0's buffers (batch normalisation statistics), and at the
    end of an epoch the metrics are reduced over all ranks. The model is left in evaluation mode; a supervised
    trainer puts it back.

    Args:
        metrics: attached to the engine under these names.
        output_transform: what becomes `state.output`, and so the metrics' input.
        (others as in `create_supervised_trainer`)
    """
    target = _device(model, device)
    dtype = _amp_dtype(amp_mode, target)
    module = _local_module(model)

    # torch_xla 2.9 can't run a linear layer in inference mode
    @(torch.no_grad() if target.type == "xla" else torch.inference_mode())
    def step(engine: Engine, batch: Any) -> Any:
        x, y = prepare_batch(batch, device=target, non_blocking=non_blocking)
        with _autocast(target, dtype):
            y_pred = module(x)
        return output_transform(x, y, y_pred)

    evaluator = Engine(step, evaluation=True)
    evaluator.add_event_handler(Events.STARTED, lambda: idist.sync_buffers(module))
    evaluator.add_event_handler(Events.STARTED, lambda: module.eval())
    for name, metric in (metrics or {}).items():
        metric.attach(evaluator, name)
    return evaluator


def _device(model: nn.Module, device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    parameter = next(model.parameters(), None)
    return idist.device() if parameter is None else parameter.device


def _amp_dtype(amp_mode: str | None, device: torch.device) -> torch.dtype | None:
    if amp_mode is None:
        return None
    if amp_mode == "amp":
        amp_mode = "fp16" if device.type == "cuda" else "bf16"
    if amp_mode not in ("fp16", "bf16"):
        raise ValueError(f"amp_mode={amp_mode!r}: expected None, 'amp', 'fp16' or 'bf16'")
    if amp_mode == "fp16" and device.type == "xla":
        raise ValueError("amp_mode='fp16' is not supported on XLA devices: use 'bf16'")
    return torch.float16 if amp_mode == "fp16" else torch.bfloat16


def _scaler(
    scaler: bool | torch.amp.GradScaler | None, dtype: torch.dtype | None, device: torch.device
) -> torch.amp.GradScaler | None:
    if scaler and dtype is None:
        raise ValueError("a gradient scaler has no use without amp_mode")
    if isinstance(scaler, torch.amp.GradScaler):
        return scaler
    return torch.amp.GradScaler(device.type) if dtype is torch.float16 and scaler is not False else None


def _autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def _group(state: State, steps: int) -> tuple[int, int]:
    """Index of this iteration in its group of accumulated iterations, and the size of the group."""
    if steps == 1:
        return 0, 1
    if state.epoch_length is None:
        raise ValueError(
            "gradient accumulation needs to know where the epoch ends: give run() an epoch_length"
        )
    index = state.epoch_iteration % steps
    return index, min(steps, state.epoch_length - (state.epoch_iteration - index))


def _no_sync(model: nn.Module) -> AbstractContextManager[Any]:
    """DistributedDataParallel without its all-reduce; nothing for other models."""
    return model.no_sync() if isinstance(model, nn.parallel.DistributedDataParallel) else nullcontext()


def _local_module(model: nn.Module) -> nn.Module:
    """The model without DistributedDataParallel, also below a torch.compile wrapper."""
    inner = _uncompiled(model)
    return idist.unwrap(inner) if isinstance(inner, nn.parallel.DistributedDataParallel) else model


def _uncompiled(model: nn.Module) -> nn.Module:
    """The model inside of what torch.compile returned."""
    inner: nn.Module = getattr(model, "_orig_mod", model)
    return inner
