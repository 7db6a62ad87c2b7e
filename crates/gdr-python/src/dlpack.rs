//! DLPack structures, with which tensor libraries describe an array to each other.
//!
//! The layouts follow `dlpack.h`, versions 0.2 to 0.8, which every library offers to a consumer that does not request a
//! version.

use std::ffi::{CStr, c_void};
use std::slice;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};

/// Name of a capsule that no consumer has taken.
const NAME: &CStr = c"dltensor";
/// Maximum number of dimensions of an array. Libraries have limits of 64 and less.
const MOST_DIMENSIONS: i32 = 1024;

/// `DLDeviceType`.
pub(crate) mod device_type {
    /// `kDLCPU`.
    pub(crate) const CPU: i32 = 1;
    /// `kDLCUDA`.
    pub(crate) const CUDA: i32 = 2;
    /// `kDLCUDAManaged`.
    pub(crate) const CUDA_MANAGED: i32 = 13;
}

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataType {
    /// `DLDataTypeCode`.
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

/// `DLTensor`, the first field of a `DLManagedTensor`.
#[repr(C)]
struct RawTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    data_type: DataType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

const _: () = {
    assert!(size_of::<DataType>() == 4);
    assert!(size_of::<RawTensor>() == 48);
};

/// An array described by a library. The capsule keeps its memory alive.
#[derive(Debug)]
pub(crate) struct DlTensor {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) data_type: DataType,
    pub(crate) shape: Vec<u64>,
    pub(crate) capsule: Py<PyAny>,
}

impl DlTensor {
    /// Reads a capsule from `__dlpack__`. The capsule stays untaken, so its own destructor releases the array. The
    /// array is on a device of type `expected`, according to `__dlpack_device__`.
    pub(crate) fn read(capsule: &Bound<'_, PyAny>, expected: i32) -> PyResult<Self> {
        let owner = capsule.clone().unbind();
        let pointer = capsule.cast::<PyCapsule>()?.pointer_checked(Some(NAME))?;
        // SAFETY: by the protocol, a capsule with this name points to a `DLManagedTensor`, which begins with this
        // structure and lives until the capsule is taken or destroyed.
        let raw = unsafe { pointer.cast::<RawTensor>().as_ref() };
        if raw.device_type != expected {
            let found = raw.device_type;
            return Err(PyValueError::new_err(format!(
                "__dlpack__ exported an array on a device of type {found}, and __dlpack_device__ said \
                 {expected}: report it to the array's library"
            )));
        }
        let count = match raw.dimensions {
            count @ 0..=MOST_DIMENSIONS => count as usize,
            other => {
                let text = format!("the array has {other} dimensions: pass an array of a few");
                return Err(PyValueError::new_err(text));
            }
        };
        // SAFETY: by the protocol, `shape` has one number per dimension.
        let shape = unsafe { numbers(raw.shape, count) };
        // SAFETY: by the protocol, `strides` is null or has one number per dimension.
        let strides = unsafe { numbers(raw.strides, count) };
        if !strides.is_empty() && !is_contiguous(shape, strides) {
            return Err(not_contiguous());
        }
        let elements = product(shape)?;
        let bits = u64::from(raw.data_type.bits) * u64::from(raw.data_type.lanes);
        let bytes = elements.checked_mul(bits).map(|bits| bits.div_ceil(8));
        Ok(Self {
            address: (raw.data.addr() as u64).wrapping_add(raw.byte_offset),
            bytes: bytes.ok_or_else(too_long)?,
            data_type: raw.data_type,
            shape: dimensions(shape)?,
            capsule: owner,
        })
    }
}

/// Returns the numbers at `start`; none where it is null.
///
/// # Safety
/// `start` is null, or `count` numbers are there while the result is used.
unsafe fn numbers<'a>(start: *const i64, count: usize) -> &'a [i64] {
    if start.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(start, count) }
}

/// Returns whether an array's elements are contiguous, with the last index varying fastest. `strides` count elements if
/// `element` is 1, or bytes if it is the size of an element.
pub(crate) fn is_contiguous_by(shape: &[i64], strides: &[i64], element: i64) -> bool {
    let mut expected = element;
    for (&length, &stride) in shape.iter().zip(strides).rev() {
        // The stride of a dimension of length 1 is never used.
        if length > 1 && stride != expected {
            return shape.contains(&0);
        }
        expected = expected.saturating_mul(length);
    }
    true
}

fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    is_contiguous_by(shape, strides, 1)
}

/// Returns the number of elements of an array.
pub(crate) fn product(shape: &[i64]) -> PyResult<u64> {
    let mut product = 1_u64;
    for length in dimensions(shape)? {
        product = product.checked_mul(length).ok_or_else(too_long)?;
    }
    Ok(product)
}

/// Returns the dimensions of an array.
pub(crate) fn dimensions(shape: &[i64]) -> PyResult<Vec<u64>> {
    let lengths = shape.iter().map(|&length| u64::try_from(length));
    lengths.collect::<Result<_, _>>().map_err(|_| too_long())
}

/// Returns the exception for an array with gaps.
pub(crate) fn not_contiguous() -> PyErr {
    PyValueError::new_err(
        "the array is not contiguous: pass a contiguous one (for a copy, tensor.contiguous())",
    )
}

fn too_long() -> PyErr {
    PyValueError::new_err("the array's shape is not one of an array in memory: pass another one")
}
