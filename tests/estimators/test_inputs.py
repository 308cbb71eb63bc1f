"""Rows in every container give the same clusters, and results come back in its form."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
import xarray as xr
from scipy import sparse

from clam_dist import ClAM
from clam_dist.estimators.inputs import open_rows

Make = Callable[..., ClAM]
NAMES = ["a", "b", "c", "d"]


def assert_same(quick: Make, holes: np.ndarray, x: Any, *, named: bool = True) -> ClAM:
    expected = quick().fit(holes)
    model = quick().fit(x)
    np.testing.assert_array_equal(model.labels_, expected.labels_)
    assert list(getattr(model, "feature_names_in_", [])) == (NAMES if named else [])
    np.testing.assert_array_equal(np.asarray(model.predict(x)).reshape(-1), expected.labels_)
    np.testing.assert_allclose(model.transform(x), expected.transform(holes), atol=1e-6)
    return model


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ">f8"])
def test_numpy(quick: Make, holes: np.ndarray, order: Any, dtype: Any) -> None:
    x = np.array(holes, dtype=dtype, order=order)
    exact = np.array(x, dtype=np.float64)
    assert_same(quick, exact, x, named=False)
    completed = quick().fit(x).complete(x)
    assert completed.dtype == x.dtype
    seen = ~np.isnan(exact)
    np.testing.assert_array_equal(completed[seen], x[seen])


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16, bool])
def test_whole_numbers(quick: Make, iris: np.ndarray, dtype: Any) -> None:
    x = (iris * 2).astype(dtype) if dtype is not bool else iris > iris.mean(axis=0)
    assert_same(quick, x.astype(np.float64), x, named=False)


def test_lists_and_objects(quick: Make, iris: np.ndarray) -> None:
    assert_same(quick, iris, iris.tolist(), named=False)
    assert_same(quick, iris, iris.astype(object), named=False)


def test_pandas(quick: Make, holes: np.ndarray) -> None:
    frame = pd.DataFrame(holes, columns=NAMES, index=np.arange(150) * 3)
    model = assert_same(quick, holes, frame)
    completed = model.complete(frame)
    pd.testing.assert_index_equal(completed.index, frame.index)
    assert not completed.isna().any().any()
    pd.testing.assert_frame_equal(completed.where(frame.notna()), frame)
    nullable = frame.astype("Float64")
    np.testing.assert_array_equal(quick().fit(nullable).labels_, model.labels_)
    with pytest.raises(ValueError, match="column 'd' is of type str, not numbers"):
        quick().fit(frame.assign(d="red"))


@pytest.mark.parametrize("kind", [pa.Table, pa.RecordBatch])
def test_arrow(quick: Make, holes: np.ndarray, kind: Any) -> None:
    columns = [pa.array(column, from_pandas=True) for column in holes.T]  # nan becomes null
    table = kind.from_arrays(columns, NAMES)
    model = assert_same(quick, holes, table)
    completed = model.complete(table)
    assert completed.schema.names == NAMES
    assert completed.to_pandas().notna().all().all()
    words = pa.table({"a": holes[:, 0], "colour": ["red"] * 150})
    with pytest.raises(ValueError, match=r"column 'colour' is of type string, not numbers"):
        quick().fit(words)


def test_arrow_whole_numbers_and_flags(quick: Make, iris: np.ndarray) -> None:
    x = np.stack([(iris[:, 0] * 10).round(), iris[:, 3] > 1], axis=1)
    table = pa.table({"a": x[:, 0].astype(np.int32), "b": x[:, 1].astype(bool)})
    np.testing.assert_array_equal(quick().fit(table).labels_, quick().fit(x).labels_)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_torch(quick: Make, holes: np.ndarray, dtype: torch.dtype) -> None:
    x = torch.from_numpy(holes).to(dtype)
    assert_same(quick, x.to(torch.float64).numpy(), x, named=False)
    assert_same(quick, x.to(torch.float64).numpy(), x.requires_grad_(), named=False)


def test_torch_on_the_cpu_is_not_copied() -> None:
    x = torch.zeros(3, 2)
    assert np.shares_memory(open_rows(x).values, x.numpy())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_torch_on_a_device(quick: Make, holes: np.ndarray) -> None:
    assert_same(quick, holes, torch.from_numpy(holes).cuda(), named=False)


def test_data_array(quick: Make, holes: np.ndarray) -> None:
    x = xr.DataArray(
        holes,
        dims=("station", "variable"),
        coords={
            "station": np.arange(150) * 2,
            "variable": NAMES,
            "height": ("station", holes[:, 0]),
        },
        attrs={"units": "cm"},
    )
    model = assert_same(quick, holes, x)
    labels = model.predict(x)
    assert labels.dims == ("station",)
    assert labels.name == "cluster"
    assert set(labels.coords) == {"station", "height"}
    assert labels.attrs == {}
    completed = model.complete(x)
    assert not completed.isnull().any()
    xr.testing.assert_identical(completed.where(x.notnull()), x)
    fitted = quick().fit_predict(x)
    xr.testing.assert_identical(fitted, labels)
    with pytest.raises(ValueError, match=r"dimensions \('y', 'x', 'v'\): give two.*or a Dataset"):
        quick().fit(xr.DataArray(np.zeros((2, 2, 2)), dims=("y", "x", "v")))


@pytest.mark.parametrize("chunks", [None, {"y": 3}])
def test_dataset(quick: Make, holes: np.ndarray, chunks: dict[str, int] | None) -> None:
    grids = {name: (("y", "x"), holes[:, j].reshape(10, 15)) for j, name in enumerate(NAMES)}
    x = xr.Dataset(grids, coords={"y": np.linspace(50, 51, 10)})
    x["b"] = x["b"].transpose("x", "y")  # the order of dimensions does not matter
    x = x if chunks is None else x.chunk(chunks)
    model = assert_same(quick, holes, x)
    labels = model.predict(x)
    assert labels.dims == ("y", "x")
    assert labels.shape == (10, 15)
    xr.testing.assert_equal(labels.y, x.y)
    completed = model.complete(x).compute()
    assert list(completed.data_vars) == NAMES
    assert int(completed.to_dataarray().isnull().sum()) == 0
    with pytest.raises(ValueError, match="variable 'c' has the dimensions"):
        quick().fit(x.assign(c=x["c"].isel(x=0)))


def test_sparse_is_refused(quick: Make, iris: np.ndarray) -> None:
    with pytest.raises(TypeError, match=r"Sparse data was passed for X.*toarray"):
        quick().fit(sparse.csr_array(iris))


def test_containers_are_not_imported() -> None:
    code = (
        "import sys, numpy as np; from clam_dist import ClAM; "
        "ClAM(2, beta=1.0, restarts=1, epochs=1).fit(np.eye(9)); "
        "assert 'dask' not in sys.modules and 'distributed' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
