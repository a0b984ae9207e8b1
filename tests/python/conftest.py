# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0

import os
import signal

import pytest
from support import write_big_zero3

# Read when DeepSpeed and transformers are imported.
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


# A shell's background jobs have it ignored, and so would their children.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def big(tmp_path_factory):
    pytest.importorskip("torch")
    return write_big_zero3(tmp_path_factory.mktemp("big") / "ckpt", megabytes=512)


@pytest.fixture(scope="session", params=["numpy", "pt"])
def framework(request):
    if request.param == "pt":
        pytest.importorskip("torch")
    return request.param
