"""What is wrong with the data."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from bench.doctor import data
from bench.doctor.case import Patient, pair
from bench.doctor.networks import GPT, SequenceClassifier, SmallCNN, TabularMLP, mlp, token_cross_entropy

_UNRELATED = (
    r"misalign",
    r"shuffl",
    r"belong",
    r"unrelated",
    r"no relation",
    r"not (depend|follow|determin)",
    r"random (label|target)",
    r"nothing (to learn|in x)",
    r"do(es)? not (say|tell|predict|carry|hold)",
    r"memori",
    r"held.out[^.]*(\bno\b|\bnot\b|never|chance|constant)",
    r"generali[sz]",
    r"label noise",
    r"noisy (label|target)",
)
_SCALE = (
    r"standardi[sz]e",
    r"normali[sz]e (the )?(input|feature|x\b)",
    r"(input|feature|column|pixel)s?[^.]*(scale|unit|size|spread|var(y|ies)|larger?\b)",
)
_TARGETS = (
    r"targets?\b[^.]*(scale|unit|size|standardi|offset|mean|var(y|ies)|large|far)",
    r"bias of the (readout|output)",
)


@pair("data", "MLP", "The columns have raw units, one of them in the thousands.", *_SCALE)
def raw_wine_columns(broken: bool) -> Patient:
    x, y = data.wine()
    x = x if broken else data.standardise(x)
    model = mlp([13, 32, 3])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, x, y, {"loss": nn.CrossEntropyLoss(), "optimizer": optimizer, "batch_size": 32}


@pair("data", "MLP", "A column with the patient's number, a million on average, was kept.", *_SCALE)
def number_of_the_patient_as_column(broken: bool) -> Patient:
    x, y = data.cancer()
    number = 1e6 * torch.rand(len(x), 1)
    x = torch.cat([data.standardise(x), number if broken else data.standardise(number)], 1)
    model = mlp([31, 32, 32, 1])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return model, x, y, {"loss": nn.BCEWithLogitsLoss(), "optimizer": optimizer, "batch_size": 32}


@pair("data", "CNN", "Images and labels are misaligned: the labels are one row late.", *_UNRELATED)
def labels_one_row_late(broken: bool) -> Patient:
    x, y = data.digit_images()
    model = SmallCNN()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    y = y.roll(1) if broken else y
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("data", "LSTM", "Inputs were shuffled without their labels.", *_UNRELATED)
def sequences_shuffled_without_labels(broken: bool) -> Patient:
    x, y = data.recall(length=8)
    model = SequenceClassifier(6, 6, width=20, cell=nn.LSTM)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x = x[torch.randperm(len(x))] if broken else x
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair(
    "data", "MLP", "Nine labels in ten are random.", *_UNRELATED, r"(label|target)s?[^.]*nois", r"wrong label"
)
def labels_of_bad_annotators(broken: bool) -> Patient:
    x, y = data.digits()
    wrong = torch.rand(len(y)) < (0.9 if broken else 0.02)
    y = torch.where(wrong, torch.randint(10, (len(y),)), y)
    model = mlp([64, 80, 10], nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair(
    "data",
    "MLP",
    "Every input occurs several times with different labels.",
    r"conflict",
    r"contradict",
    r"repeat",
    r"duplicat",
    r"same input",
    r"equal (rows|inputs)",
    r"unequal",
)
def duplicates_with_conflicting_labels(broken: bool) -> Patient:
    x, y = data.spirals(300)
    x, y = x.repeat(3, 1), y.repeat(3)
    if broken:
        y = torch.randint(3, (len(y),))
    model = mlp([2, 64, 64, 3], nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("data", "MLP", "Targets are in the ten thousands.", *_TARGETS, least=0.3)
def targets_in_the_ten_thousands(broken: bool) -> Patient:
    x, y = data.diabetes()
    model = mlp([10, 32, 1])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, 3e4 * y if broken else y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@pair("data", "MLP", "Targets lie around 500 and vary by one.", *_TARGETS)
def targets_far_from_zero(broken: bool) -> Patient:
    x, y = data.smooth_function()
    model = mlp([8, 64, 64, 1], nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y + 500 if broken else y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@pair(
    "data",
    "MLP",
    "Pixels were divided as whole numbers, so that all are 0.",
    r"constant",
    r"all zero",
    r"do(es)? not vary",
    r"are 0",
    r"same for (all|every)",
    r"identical",
    r"no variation",
    r"nothing varies",
    *_UNRELATED,
)
def pixels_divided_as_whole_numbers(broken: bool) -> Patient:
    x, y = data.digits()
    pixels = ((x * 0.376 + 0.305) * 16).round().long()
    x = (pixels // 17).float() if broken else pixels / 16
    model = mlp([64, 64, 10])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair(
    "data",
    "tabular MLP",
    "Every row has its columns in an order of its own.",
    *_UNRELATED,
    r"columns?[^.]*(order|swap|mix)",
)
def columns_swapped_in_every_row(broken: bool) -> Patient:
    x, y = data.rule_of_table()
    if broken:
        x = x.gather(1, torch.rand_like(x).argsort(1))
    model = TabularMLP(12, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("data", "CNN", "Pixels run from 0 to 255.", *_SCALE)
def pixels_up_to_255(broken: bool) -> Patient:
    x, y = data.digit_images()
    if broken:
        x = (x * 0.376 + 0.305) * 255
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("data", "GPT", "The targets are the next characters of other texts.", *_UNRELATED)
def next_characters_of_other_texts(broken: bool) -> Patient:
    x, y = data.text()
    y = y[torch.randperm(len(y))] if broken else y
    model = GPT(14, 16, width=48, depth=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": token_cross_entropy, "optimizer": optimizer, "batch_size": 32}


@pair(
    "data",
    "MLP",
    "A few targets are a thousand times larger.",
    r"outlier",
    r"heavy",
    r"robust",
    r"huber",
    *_TARGETS,
)
def outliers_among_the_targets(broken: bool) -> Patient:
    x, y = data.smooth_function()
    model = mlp([8, 64, 64, 1])
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    if broken:
        y = torch.where(torch.rand_like(y) < 0.01, 1000 * y, y)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}
