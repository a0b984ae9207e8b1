# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Writes what the reference libraries do, for tests/writer.

split_cases.txt    how huggingface_hub cuts lists of tensor sizes into files
headers.txt        the first bytes of files that safetensors writes
index.json         json.dumps as transformers calls it for its index

Made with torch 2.13, safetensors 0.8.0, huggingface_hub 0.36.2; every seed is
fixed. Run it in this folder.
"""

import json
import random

import safetensors.torch
import torch
from huggingface_hub import split_torch_state_dict_into_shards

# Control characters, quotes, DEL, two, three and four bytes of UTF-8, and
# pairs whose order differs between bytes, UTF-16 and letter case.
ODD_NAMES = [
    'plain.weight', 'Plain.weight', '', ' ', 'a"b', 'a\\b', 'a/b', 'tab\t',
    'line\n', 'return\r', 'bell\x07', 'back\b', 'feed\f', 'zero\x00', 'us\x1f',
    'del\x7f', 'c1\x80', 'é', 'ß.weight', '層.0', '\u2028', '\uffff', '𝔴', '🤗',
    'a', 'a.', 'a0', 'aa', 'layers.10.w', 'layers.2.w', '<&>',
]
DTYPES = {
    'BOOL': torch.bool, 'U8': torch.uint8, 'I8': torch.int8,
    'F8_E5M2': torch.float8_e5m2, 'F8_E4M3': torch.float8_e4m3fn,
    'F8_E8M0': torch.float8_e8m0fnu, 'F8_E4M3FNUZ': torch.float8_e4m3fnuz,
    'F8_E5M2FNUZ': torch.float8_e5m2fnuz, 'I16': torch.int16,
    'U16': torch.uint16, 'F16': torch.float16, 'BF16': torch.bfloat16,
    'I32': torch.int32, 'U32': torch.uint32, 'F32': torch.float32,
    'C64': torch.complex64, 'F64': torch.float64, 'I64': torch.int64,
    'U64': torch.uint64,
}


def split_cases(out):
    """A line each: limit, sizes, '|', the shard of each size, '|', count."""
    rng = random.Random(20240607)
    for case in range(400):
        limit = rng.choice([1, 2, 7, 10, 100, 1000, 5_000_000_000])
        count = rng.choice([0, 1, 2, 3, 5, 8, 20, 60])
        largest = rng.choice([limit // 4 + 1, limit, limit + 2, 3 * limit])
        sizes = [rng.choice([0, largest, rng.randint(0, largest)])
                 for _ in range(count)]
        state = {f't{i}': torch.empty(size, dtype=torch.uint8, device='meta')
                 for i, size in enumerate(sizes)}
        split = split_torch_state_dict_into_shards(
            state, filename_pattern='model{suffix}.safetensors',
            max_shard_size=limit)
        files = sorted(split.filename_to_tensors)
        shards = [files.index(split.tensor_to_filename[f't{i}'])
                  for i in range(count)]
        print(limit, *sizes, '|', *shards, '|', len(files), file=out)


def write_header(out, title, tensors, metadata):
    """Title; name in hex, dtype and shape of each tensor; the header in hex."""
    blob = safetensors.torch.save(
        {name: torch.zeros(shape, dtype=torch.uint8).to(DTYPES[dtype])
         for name, dtype, shape in tensors}, metadata)
    length = 8 + int.from_bytes(blob[:8], 'little')
    print('case', title, file=out)
    for key, value in (metadata or {}).items():
        print('metadata', '=' + key.encode().hex(), '=' + value.encode().hex(),
              file=out)
    for name, dtype, shape in tensors:
        print('tensor', '=' + name.encode().hex(), dtype, *shape, file=out)
    print('header', blob[:length].hex(), file=out)


def headers(out):
    rng = random.Random(20240608)
    pt = {'format': 'pt'}
    write_header(out, 'nothing', [], None)
    write_header(out, 'no-tensors', [], pt)
    write_header(out, 'no-metadata', [('w', 'F32', [2, 3])], None)
    write_header(out, 'scalar-and-empty',
                 [('s', 'F32', []), ('e', 'F32', [0]), ('f', 'F32', [4, 0, 2]),
                  ('b', 'BOOL', [1])], pt)
    write_header(out, 'every-dtype',
                 [(f't.{dtype}', dtype, [3]) for dtype in DTYPES], pt)
    write_header(out, 'odd-names', [(name, 'BF16', [1]) for name in ODD_NAMES],
                 pt)
    write_header(out, 'odd-metadata', [('w', 'U8', [1])],
                 {'k"\\\n\x7f🤗': 'v"\\\x01\x7fé'})
    for case in range(40):
        tensors = [
            (f'{rng.choice(["model", "Model", "z"])}.{rng.randint(0, 12)}.{i}',
             rng.choice(sorted(DTYPES)),
             [rng.randint(0, 5) for _ in range(rng.randint(0, 3))])
            for i in range(rng.randint(1, 12))]
        write_header(out, f'random-{case}', tensors, pt)


def index(out):
    metadata = {'total_parameters': 2**53 + 1, 'total_size': 2**64 - 1,
                'lm_head.weight': 'model.embed_tokens.weight',
                'alias é"': 'kept 🤗'}
    weight_map = {name: f'model-{i + 1:05d}-of-00031.safetensors'
                  for i, name in enumerate(ODD_NAMES)}
    out.write(json.dumps({'metadata': metadata, 'weight_map': weight_map},
                         indent=2, sort_keys=True) + '\n')


for name, write in [('split_cases.txt', split_cases), ('headers.txt', headers),
                    ('index.json', index)]:
    with open(name, 'w', encoding='utf-8') as stream:
        write(stream)
