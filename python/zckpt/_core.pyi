# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from zckpt._progress import ProgressCallback

version: str

def parse_size(text: str) -> int: ...
def open(path: bytes, options: Dict[str, Any]) -> Opened: ...
def verify(path: bytes, options: Dict[str, Any], progress: Optional[ProgressCallback]) -> Dict[str, Any]: ...
def merge(path: bytes, options: Dict[str, Any], progress: Optional[ProgressCallback]) -> Dict[str, Any]: ...
def export_hf(path: bytes, options: Dict[str, Any], progress: Optional[ProgressCallback]) -> Dict[str, Any]: ...
def extract_lora(path: bytes, options: Dict[str, Any], progress: Optional[ProgressCallback]) -> Dict[str, Any]: ...

class Opened:
    def facts(self) -> Dict[str, Any]: ...
    def findings(self) -> List[Mapping[str, Any]]: ...
    def tensors(self) -> List[Tuple[str, str, str, str, Tuple[int, ...]]]: ...
    def weights(self) -> List[int]: ...
    def load(
        self,
        indices: Sequence[int],
        dtypes: Sequence[str],
        buffers: Sequence[npt.NDArray[np.uint8]],
        options: Dict[str, Any],
        progress: Optional[ProgressCallback],
    ) -> Dict[str, int]: ...
    def load_runs(
        self,
        index: int,
        firsts: npt.NDArray[np.uint64],
        numel: int,
        dtype: str,
        out: npt.NDArray[np.uint8],
        options: Dict[str, Any],
    ) -> Dict[str, int]: ...

class Stream:
    def __init__(
        self,
        opened: Opened,
        indices: Sequence[int],
        dtype: Optional[str],
        order: str,
        buffer_bytes: int,
        options: Dict[str, Any],
    ) -> None: ...
    def next(self) -> Optional[Tuple[int, int, memoryview]]: ...
