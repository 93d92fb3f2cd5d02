"""Loads data by forked workers inside of a scope of function hooks."""

import torch
from torch.utils.data import DataLoader, Dataset

import hookline
from hookline.record.measures import Measures
from hookline.record.run import Recorder

torch.set_num_threads(1)


class Log(hookline.FunctionHook):
    def forward_preprocess(self, function, in_data):
        pass


class Doubles(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch._C._len_torch_function_stack(), torch.tensor(float(index)) * 2


if __name__ == "__main__":
    with Recorder(Measures(time=True, level="function")), Log():
        loader = DataLoader(Doubles(), num_workers=2, multiprocessing_context="fork")
        batches = [(modes.item(), sample.item()) for modes, sample in loader]
    print("modes in workers:", {modes for modes, _ in batches})
    print("samples:", [sample for _, sample in batches])
