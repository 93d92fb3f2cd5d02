"""A plain loop over real digits, with validation; knows nothing of hookline."""

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten())
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(4 * 36, 10)
        self.spare = nn.Linear(2, 2)

    def forward(self, images):
        return self.head(self.drop(self.features(images)))


def main():
    torch.set_num_threads(1)
    data = load_digits()
    images = torch.tensor(data.images[:320], dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(data.target[:320])
    model, criterion = Digits(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(2):
        model.train()
        for batch in range(0, 256, 32):
            optimizer.zero_grad()
            loss = criterion(model(images[batch : batch + 32]), labels[batch : batch + 32])
            loss.backward()
            optimizer.step()
            print(epoch, loss.item().hex())
        model.eval()
        with torch.no_grad():
            print("validation", criterion(model(images[256:]), labels[256:]).item().hex())


if __name__ == "__main__":
    main()
