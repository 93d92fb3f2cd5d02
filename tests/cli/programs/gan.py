"""Two networks that train against each other, each with an optimizer of its own."""

import torch
from torch import nn


class Generator(nn.Sequential):
    pass


class Discriminator(nn.Sequential):
    pass


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator = Generator(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 2))
    discriminator = Discriminator(nn.Linear(2, 8), nn.LeakyReLU(), nn.Linear(8, 1))
    criterion = nn.BCEWithLogitsLoss()
    make, tell = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (generator, discriminator))
    ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
    for _ in range(5):
        angle = torch.rand(16, 1) * 6.28
        real = torch.cat([angle.cos(), angle.sin()], 1)
        fake = generator(torch.randn(16, 4))
        told = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
        tell.zero_grad()
        told.backward()
        tell.step()
        fooled = criterion(discriminator(fake), ones)
        make.zero_grad()
        fooled.backward()
        make.step()
        print(told.item().hex(), fooled.item().hex())


if __name__ == "__main__":
    main()
