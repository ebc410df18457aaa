"""The part of OpenVINO that Afterrun uses: its wheel has annotations, but no py.typed marker."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

class Model: ...

class PartialShape:
    def __getitem__(self, index: int) -> Dimension: ...

class Dimension:
    is_static: bool
    def get_length(self) -> int: ...

class Output:
    partial_shape: PartialShape

class Tensor:
    data: NDArray[np.float32]

class InferRequest:
    def infer(self, inputs: Mapping[str, NDArray[np.int64]], share_inputs: bool = ...) -> object: ...
    def get_output_tensor(self, index: int) -> Tensor: ...

class CompiledModel:
    def output(self, index: int) -> Output: ...
    def create_infer_request(self) -> InferRequest: ...

class Core:
    def get_property(self, device_name: str, name: str) -> Any: ...
    def compile_model(
        self, model: Model | Path | str, device_name: str, config: Mapping[str, Any]
    ) -> CompiledModel: ...

def convert_model(input_model: object, *, example_input: object) -> Model: ...
def save_model(model: Model, output_model: Path | str, compress_to_fp16: bool) -> None: ...
