//! Routes to GPU memory, for the CPU and for each RDMA device.

use std::sync::Arc;

use gdr_cuda::{DeviceBuffer, Family, Gpu};
use gdr_rdma::{Access, Buffer, Device, VerbsOptions};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::error::IntoException;
use crate::runtime::Runtime;
use crate::tensor::Tensor;

/// How one side accesses the memory, or why it cannot.
struct Reach {
    /// Name of the route or the RDMA device.
    name: String,
    /// How it accesses the memory; `None` if it cannot.
    method: Option<String>,
    /// Why other methods do not work.
    rejected: Vec<String>,
}

/// What was found out about the memory.
struct Found {
    gpu: Gpu,
    allocator: &'static str,
    backend: String,
    backend_reason: String,
    routes: Vec<Reach>,
    nics: Result<Vec<Reach>, String>,
}

/// Reports how the CPU and each RDMA device can access GPU memory, and why other methods do not work.
///
/// `memory` is as for map(). It is registered with each device for reading, and then released again.
#[pyfunction]
#[pyo3(signature = (memory, /))]
pub(crate) fn probe<'py>(memory: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    let py = memory.py();
    let tensor = Tensor::of(memory)?;
    let (address, bytes) = (tensor.ptr.get(), tensor.bytes);
    let found = py.detach(|| look(tensor))?;
    let report = PyDict::new(py);
    report.set_item("address", address)?;
    report.set_item("bytes", bytes)?;
    report.set_item(
        "simulated",
        found.gpu.driver().kind() == gdr_cuda::DriverKind::Simulated,
    )?;
    report.set_item("gpu", gpu(py, &found.gpu)?)?;
    report.set_item("allocator", found.allocator)?;
    let cpu = PyDict::new(py);
    cpu.set_item("backend", found.backend)?;
    cpu.set_item("reason", found.backend_reason)?;
    cpu.set_item("routes", reaches(py, "route", found.routes)?)?;
    report.set_item("cpu", cpu)?;
    let (nics, error) = match found.nics {
        Ok(nics) => (nics, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    report.set_item("nics", reaches(py, "device", nics)?)?;
    report.set_item("nics_error", error)?;
    Ok(report)
}

fn look(tensor: Tensor) -> PyResult<Found> {
    let runtime = Runtime::get()?;
    let (ptr, bytes) = (tensor.ptr, tensor.bytes);
    let gpu = runtime.gpu_of(ptr)?.gpu.clone();
    let info = gpu.driver().pointer_info(ptr);
    let info = info.map_err(IntoException::into_exception)?;
    let buffer = Arc::new(tensor.into_buffer(&runtime)?);
    let context = runtime.context();
    let routes = context.routes(ptr, bytes);
    let routes = routes.map_err(IntoException::into_exception)?;
    let choice = context.choice();
    Ok(Found {
        allocator: match info.family {
            Family::Plain => "cuMemAlloc",
            Family::Pool => "cuMemAllocAsync",
            Family::Vmm => "cuMemCreate",
            _ => "unknown",
        },
        backend: choice.backend.to_string(),
        backend_reason: choice.reason.clone(),
        routes: routes
            .into_iter()
            .map(|report| Reach {
                name: report.route.to_string(),
                method: report.refusal.is_none().then(|| choice.backend.to_string()),
                rejected: report.refusal.into_iter().collect(),
            })
            .collect(),
        nics: nics(&buffer),
        gpu,
    })
}

/// Registers the memory with each RDMA device, and releases it.
fn nics(buffer: &Arc<DeviceBuffer>) -> Result<Vec<Reach>, String> {
    let listed = Device::list_verbs(&VerbsOptions::new()).map_err(|error| error.to_string())?;
    let reach = |name: String| {
        let (method, rejected) = match register(&name, buffer) {
            Ok((method, rejected)) => (Some(method), rejected),
            Err(error) => (None, vec![error.to_string()]),
        };
        Reach {
            name,
            method,
            rejected,
        }
    };
    Ok(listed
        .into_iter()
        .map(|device| reach(device.name))
        .collect())
}

fn register(name: &str, buffer: &Arc<DeviceBuffer>) -> gdr_rdma::Result<(String, Vec<String>)> {
    let device = Device::verbs(&VerbsOptions::new().device(name))?;
    let memory = Buffer::staged(Arc::clone(buffer))?;
    let region = device
        .protection_domain()
        .register(&memory, Access::REMOTE_READ)?;
    let mut rejected = region.rejected_methods().to_vec();
    rejected.extend(region.unverified_reason().map(str::to_owned));
    Ok((region.route().to_string(), rejected))
}

fn gpu<'py>(py: Python<'py>, gpu: &Gpu) -> PyResult<Bound<'py, PyDict>> {
    let info = gpu.info();
    let described = PyDict::new(py);
    described.set_item("device", info.ordinal.0)?;
    described.set_item("name", &info.name)?;
    described.set_item("pci", info.bdf.to_string())?;
    Ok(described)
}

fn reaches<'py>(py: Python<'py>, key: &str, found: Vec<Reach>) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for reach in found {
        let entry = PyDict::new(py);
        entry.set_item(key, reach.name)?;
        entry.set_item("method", reach.method)?;
        entry.set_item("rejected", reach.rejected)?;
        list.append(entry)?;
    }
    Ok(list)
}
