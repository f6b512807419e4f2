"""A user's own data: reading it, describing it, and errors that name the wrong sample."""

import pickle
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from jacnorm.lab.data import DataError, load


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def arrays(n=30, classes=3):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 4)), np.arange(n) % classes


def frame(n=30):
    x, y = arrays(n)
    table = pd.DataFrame(x, columns=list("abcd"))
    table["kind"] = np.array(["red", "green", "blue"])[y]
    return table


def save_images(folder, sizes=((8, 8),), mode="L", classes=("cat", "dog"), count=6):
    for c, name in enumerate(classes):
        (Path(folder) / name).mkdir(parents=True)
        for i in range(count):
            color = 40 * c + i if mode == "L" else (40 * c + i, 2, 3)
            Image.new(mode, sizes[i % len(sizes)], color).save(Path(folder) / name / f"{i}.png")


def test_an_npz_of_rows_is_standardized_and_split_alike_each_time(here):
    x, y = arrays()
    np.savez("a.npz", x=x, y=y + 5)
    data, again = load("a.npz"), load("a.npz")
    assert data.classes == ("5", "6", "7")
    assert (len(data.train), len(data.test)) == (24, 6)
    assert data.train.labels.bincount().tolist() == [8, 8, 8]
    torch.testing.assert_close(torch.tensor(data.mean), data.train.images.mean(0))
    torch.testing.assert_close(torch.tensor(data.std), data.train.images.std(0, correction=0))
    assert torch.equal(data.train.images, again.train.images)
    assert data.fingerprint == again.fingerprint
    rows = {tuple(row) for split in (data.train, data.test) for row in split.images.tolist()}
    assert rows == {tuple(row) for row in torch.tensor(x, dtype=torch.float32).tolist()}
    assert "24 samples to train on, 6 to test; 4 features, standardized; 3 classes: 5, 6, 7" in data.told()
    assert not data.is_pixels


def test_another_file_under_the_same_name_has_another_fingerprint(here):
    x, y = arrays()
    np.savez("a.npz", x=x, y=y)
    before = load("a.npz").fingerprint
    x[7, 2] += 1
    np.savez("a.npz", x=x, y=y)
    assert load("a.npz").fingerprint != before


@pytest.mark.parametrize("shape", [(12, 5, 5), (12, 5, 5, 3), (12, 3, 5, 5)])
def test_images_of_bytes(here, shape):
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.savez("a.npz", x=x, y=np.arange(12) % 2, x_test=x[:4], y_test=np.arange(4) % 2)
    data = load("a.npz")
    first = x.reshape(12, 1, 5, 5) if x.ndim == 3 else x if shape[1] == 3 else x.transpose(0, 3, 1, 2)
    torch.testing.assert_close(data.train.images, torch.tensor(first).float() / 255)
    assert len(data.test) == 4
    assert data.is_pixels


def test_images_in_another_range_are_told_of(here):
    np.savez("a.npz", x=np.random.default_rng(0).normal(size=(12, 1, 5, 5)), y=np.arange(12) % 2)
    assert "not pixels from 0 to 1" in load("a.npz").told()


def test_a_class_that_only_the_test_split_has_is_refused(here):
    x, y = arrays(12)
    np.savez("a.npz", x=x, y=y, x_test=x[:4], y_test=[0, 1, 7, 2])
    with pytest.raises(DataError, match=r"a.npz: x_test\[2\] of the test split has the class '7', which no"):
        load("a.npz")
    np.savez("a.npz", x=x, y=y, x_test=x[:2], y_test=[0, 1])  # the test split may lack a class
    assert load("a.npz").classes == ("0", "1", "2")
    save_images("photos/train")
    save_images("photos/test", classes=("cat", "lynx"))
    with pytest.raises(DataError, match=r"photos: .*lynx/0.png of the test split has the class 'lynx'"):
        load("photos")


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_folder_of_images_by_class(here, mode):
    save_images("pets", mode=mode)
    (here / "pets" / "notes.txt").write_text("")
    data = load("pets")
    assert data.classes == ("cat", "dog")
    assert data.train.images.shape == (10, 1 if mode == "L" else 3, 8, 8)
    assert data.test.labels.tolist() == [0, 1]
    dogs = data.train.images[data.train.labels == 1][:, 0] * 255
    assert dogs.min().round() >= 40
    assert "1 other file ignored" in data.told()


def test_a_folder_with_a_test_split_of_its_own(here):
    save_images("pets/train")
    save_images("pets/test", count=2)
    data = load("pets")
    assert (len(data.train), len(data.test)) == (12, 4)


@pytest.mark.parametrize("sep", [",", ";"])
def test_a_table(here, sep):
    table = frame()
    table["shop"] = ["north", "south"] * 15
    table.to_csv("a.csv", sep=sep)
    data = load("a.csv", label="kind")
    assert data.classes == ("blue", "green", "red")
    assert data.columns == ("a", "b", "c", "d", "shop=north", "shop=south")
    assert (data.train.images[:, 4] + data.train.images[:, 5] == 1).all()
    told = data.told()
    assert "counts the rows and is left out" in told
    assert "'shop' becomes 2 columns of zeros and ones: north, south" in told


def test_a_column_that_never_changes_gives_no_nan(here):
    table = frame()
    table["same"] = 3.0
    table.to_csv("a.csv", index=False)
    data = load("a.csv", label="kind")
    assert data.std[4] == 1
    assert data.held_out(0.25, 0).std[4] == 1
    assert "the same in every sample to train on: same" in data.told()


def test_parquet(here):
    if find_spec("pyarrow") is None:
        (here / "a.parquet").write_bytes(b"")
        with pytest.raises(DataError, match="parquet files need the package pyarrow"):
            load("a.parquet", label="kind")
        return
    frame().to_parquet("a.parquet")
    assert load("a.parquet", label="kind").columns == ("a", "b", "c", "d")


SOURCES = {
    "arrays": "return x, y",
    "tensors": "return torch.tensor(x), torch.tensor(y)",
    "dataset": "return TensorDataset(torch.tensor(x), torch.tensor(y))",
    "loader": "return DataLoader(TensorDataset(torch.tensor(x), torch.tensor(y)), 7, shuffle=True)",
    "both": "return (x, y), (x[:6], y[:6])",
    "two sets": "t = TensorDataset(torch.tensor(x), torch.tensor(y)); return t, DataLoader(t)",
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_function(here, name, monkeypatch):
    module = f"own_data_{name.replace(' ', '_')}"
    (here / f"{module}.py").write_text(
        "import numpy as np, torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "x, y = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30) % 3\n"
        f"def make():\n    {SOURCES[name]}\n"
    )
    data = load(f"{module}:make")
    x, _ = arrays()
    found = torch.cat([data.train.images, data.test.images])[:, 0].sort().values
    counts = {"both": (30, 6), "two sets": (30, 30)}.get(name, (24, 6))
    assert (len(data.train), len(data.test)) == counts
    if counts == (24, 6):
        torch.testing.assert_close(found, torch.tensor(np.sort(x[:, 0]), dtype=torch.float32))


def nothing():
    pass


def with_hole(table):
    table.loc[4, "b"] = np.nan
    return table


def with_word(table):
    table["b"] = table["b"].astype(object)
    table.loc[4, "b"] = "?"
    return table


BAD_TABLES = {
    "no label": (frame(), "", r"Name it with --label: a, b, c, d, kind"),
    "label not there": (frame(), "kinds", r"no column 'kinds': did you mean 'kind'"),
    "hole": (with_hole(frame()), "kind", r"row 6 has nothing in column 'b'"),
    "word": (with_word(frame()), "kind", r"row 6 has '\?' in column 'b', among numbers"),
    "names": (frame(99).assign(name=[f"n{i}" for i in range(99)]), "kind", r"'name' has 99 different words"),
    "one class": (frame().assign(kind="red"), "kind", r"there is only one class, 'red'"),
    "amounts": (frame().assign(kind=0.5), "kind", r"row 2 has the label 0.5; classes are needed"),
    "label hole": (frame().assign(kind=[None, *"ab" * 14, "a"]), "kind", r"row 2 has no 'kind'"),
    "a class of one": (frame().assign(kind=["x", *"ab" * 14, "a"]), "kind", r"class 'x' has one sample"),
    "infinite": (frame().assign(a=[1e300] + [0.0] * 29), "kind", r"row 2, column 'a', has inf"),
    "nothing else": (frame()[["kind"]], "kind", r"no column beside 'kind'"),
    "no rows": (frame()[:0], "kind", r"has no rows"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_a_table_with_a_mistake(here, name):
    table, label, says = BAD_TABLES[name]
    table.to_csv("a.csv", index=False)
    with pytest.raises(DataError, match=rf"^a\.csv: .*{says}"):
        load("a.csv", label=label)


class Trap:
    def __reduce__(self):
        return Path.touch, (Path("run"),)


@pytest.mark.parametrize("kind", ["array", "file"])
def test_a_pickle_is_refused_and_never_executed(here, kind):
    if kind == "file":
        (here / "a.npz").write_bytes(pickle.dumps(Trap()))
        says = "not an .npz of plain arrays"
    else:
        np.savez("a.npz", x=np.array([Trap(), Trap()], dtype=object), y=np.arange(2))
        says = "'x' is a pickle of Python objects"
    with pytest.raises(DataError, match=says):
        load("a.npz")
    assert not (here / "run").exists()


x, y = arrays()
BAD_ARRAYS = {
    "no y": ({"x": x}, "arrays x and y are needed, it has x"),
    "nan": ({"x": np.where(np.arange(120).reshape(30, 4) == 70, np.nan, x), "y": y}, r"x\[17\] has nan"),
    "lengths": ({"x": x, "y": y[:9]}, "x has 30 samples and y has 9 labels"),
    "one class": ({"x": x, "y": y * 0}, "there is only one class, '0'"),
    "amounts": ({"x": x, "y": y + 0.5}, r"x\[0\] has the label 0.5"),
    "words": ({"x": x.astype(str), "y": y}, "x has dtype <U32; numbers are needed"),
    "shape": ({"x": x[:, 0], "y": y}, r"x has shape \(30,\); a table is"),
    "empty": ({"x": x[:0], "y": y[:0]}, r"labels have shape \(0,\)"),
    "columns": ({"x": x, "y": y, "x_test": x[:, :2], "y_test": y}, r"two shapes, \(4,\) and \(2,\)"),
    "bytes": ({"x": np.full((30, 5, 5), 999), "y": y}, "from 999 to 999; images have whole numbers 0 to 255"),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_arrays_with_a_mistake(here, name):
    given, says = BAD_ARRAYS[name]
    np.savez("a.npz", **given)
    with pytest.raises(DataError, match=rf"^a\.npz: .*{says}"):
        load("a.npz")


def test_folders_with_a_mistake(here):
    (here / "empty").mkdir()
    with pytest.raises(DataError, match="empty: there are no folders in it"):
        load("empty")
    save_images("sizes", sizes=((8, 8), (9, 8)))
    with pytest.raises(DataError, match=r"cat/1.png: it is 9×8, and sizes/cat/0.png is 8×8"):
        load("sizes")
    save_images("alone", classes=("cat",))
    with pytest.raises(DataError, match="there is only one class, 'cat'"):
        load("alone")
    save_images("broken")
    (here / "broken" / "dog" / "3.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"dog/3.png: not a readable image"):
        load("broken")
    (here / "broken" / "fish").mkdir()
    with pytest.raises(DataError, match="broken/fish: there are no images in it"):
        load("broken")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("none.npz", "there is no such file"),
        ("none.csv", "there is no such file"),
        ("some/where", "there is no such file or folder"),
        ("nowhere:make", "No module named 'nowhere'"),
        ("kmnits", "did you mean 'kmnist'.*or name an .npz"),
    ],
)
def test_what_is_not_there(here, name, says):
    with pytest.raises(DataError, match=says):
        load(name, label="kind" if name.endswith("csv") else "")
