# SPDX-License-Identifier: Apache-2.0
"""A long prompt over several GPUs or processes, each with a part of its tokens; then one of them writes on.

torchrun --nproc-per-node 2 examples/python/long_prompt.py README.md
torchrun --nproc-per-node 8 examples/python/long_prompt.py book.txt --model NX-AI/xLSTM-7b
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from xlstm_hip.distributed import ContextParallel
from xlstm_hip.models import load_pretrained, load_tokenizer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("text", type=Path)
parser.add_argument("--model", default="models/demo")
parser.add_argument("--new-tokens", type=int, default=40)
arguments = parser.parse_args()
if "RANK" not in os.environ:
    parser.error("start it with torchrun, as above")

device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()

model = load_pretrained(arguments.model, device=device)  # every rank has the whole model
tokenizer = load_tokenizer(arguments.model, model.config.vocab_size)
prompt = torch.tensor([tokenizer.encode(arguments.text.read_text(encoding="utf-8"))], device=device)
mine = prompt.tensor_split(ranks, dim=1)[rank]

begin = time.perf_counter()
split = ContextParallel(dist.group.WORLD, mine.shape[1])
logits, state = model.read(mine, cp_group=split)  # of the whole prompt, on every rank
token = int(logits[0].argmax())
seconds = time.perf_counter() - begin

if rank == 0:
    print(f"{prompt.shape[1]:,} tokens over {ranks} ranks in {seconds:.2f} s")
    written = [token]
    for _ in range(arguments.new_tokens - 1):
        written.append(int(model.step(torch.tensor(written[-1:], device=device), state)[0].argmax()))
    print(tokenizer.decode(written))
dist.destroy_process_group()
