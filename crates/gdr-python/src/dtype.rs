//! Types of elements, and their values in Python.

use gdr_object::Element;
use pyo3::IntoPyObject;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt};

use crate::dlpack::DataType;

/// Maximum size in bytes of an element with a value in Python.
pub(crate) const LONGEST: usize = 16;

/// The type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dtype {
    kind: Kind,
    size: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bool,
    Int,
    Uint,
    Float,
    Bfloat,
    Complex,
    /// Has no value in Python.
    Opaque,
}

impl Dtype {
    /// Bytes.
    pub(crate) const BYTE: Self = Self {
        kind: Kind::Uint,
        size: 1,
    };

    /// Returns the type that DLPack names.
    pub(crate) fn of_dlpack(data_type: DataType) -> Self {
        let kind = match (data_type.code, data_type.lanes) {
            (0, 1) => Kind::Int,
            (1, 1) => Kind::Uint,
            (2, 1) => Kind::Float,
            (4, 1) => Kind::Bfloat,
            (5, 1) => Kind::Complex,
            (6, 1) => Kind::Bool,
            _ => Kind::Opaque,
        };
        let bits = usize::from(data_type.bits) * usize::from(data_type.lanes);
        Self::new(kind, bits.div_ceil(8))
    }

    /// Returns the type of an array interface's `typestr`: byte order, kind, bytes.
    pub(crate) fn of_typestr(text: &str) -> Option<Self> {
        let mut letters = text.chars();
        let (order, kind) = (letters.next()?, letters.next()?);
        let size = letters.as_str().parse().ok()?;
        let kind = match (order, kind) {
            ('<' | '|' | '=', 'b') => Kind::Bool,
            ('<' | '|' | '=', 'i') => Kind::Int,
            ('<' | '|' | '=', 'u') => Kind::Uint,
            ('<' | '|' | '=', 'f') => Kind::Float,
            ('<' | '|' | '=', 'c') => Kind::Complex,
            _ => Kind::Opaque,
        };
        Some(Self::new(kind, size))
    }

    /// Returns the type for a format of Python's `struct` module, as used by the buffer interface.
    pub(crate) fn of_format(format: &str, size: usize) -> Self {
        let kind = match format.trim_start_matches(['@', '=', '<']) {
            "?" => Kind::Bool,
            "b" | "h" | "i" | "l" | "q" | "n" => Kind::Int,
            "B" | "H" | "I" | "L" | "Q" | "N" => Kind::Uint,
            "e" | "f" | "d" => Kind::Float,
            _ => Kind::Opaque,
        };
        Self::new(kind, size)
    }

    /// Returns the same type of an object's elements, if objects have it.
    pub(crate) fn element(self) -> Option<Element> {
        Some(match (self.kind, self.size) {
            (Kind::Uint | Kind::Bool, 1) => Element::U8,
            (Kind::Uint, 2) => Element::U16,
            (Kind::Uint, 4) => Element::U32,
            (Kind::Uint, 8) => Element::U64,
            (Kind::Int, 1) => Element::I8,
            (Kind::Int, 2) => Element::I16,
            (Kind::Int, 4) => Element::I32,
            (Kind::Int, 8) => Element::I64,
            (Kind::Bfloat, 2) => Element::Bf16,
            (Kind::Float, 2) => Element::F16,
            (Kind::Float, 4) => Element::F32,
            (Kind::Float, 8) => Element::F64,
            _ => return None,
        })
    }

    fn new(kind: Kind, size: usize) -> Self {
        let has_value = match kind {
            Kind::Bool => size == 1,
            Kind::Int | Kind::Uint => matches!(size, 1 | 2 | 4 | 8),
            Kind::Float => matches!(size, 2 | 4 | 8),
            Kind::Bfloat => size == 2,
            Kind::Complex => matches!(size, 8 | 16),
            Kind::Opaque => false,
        };
        let kind = if has_value { kind } else { Kind::Opaque };
        Self { kind, size }
    }

    /// Bytes of one element.
    pub(crate) const fn size(self) -> usize {
        self.size
    }

    /// Returns the bytes of one element, which are little-endian as on every GPU, as a Python value.
    pub(crate) fn value(self, py: Python<'_>, bytes: &[u8]) -> PyResult<Py<PyAny>> {
        let mut wide = [0; 8];
        let low = bytes.len().min(8);
        wide[..low].copy_from_slice(&bytes[..low]);
        let word = u64::from_le_bytes(wide);
        Ok(match (self.kind, self.size) {
            (Kind::Bool, _) => PyBool::new(py, word != 0).to_owned().into_any().unbind(),
            (Kind::Uint, _) => int(py, word)?,
            (Kind::Int, size) => {
                // Shifting up and down again fills the upper bits with the sign.
                let unused = 64 - 8 * size as u32;
                int(py, (word << unused).cast_signed() >> unused)?
            }
            (Kind::Float, 2) => float(py, half(word as u16)),
            (Kind::Bfloat, _) => float(py, f64::from(f32::from_bits((word as u32) << 16))),
            (Kind::Float, 4) => float(py, f64::from(f32::from_bits(word as u32))),
            (Kind::Float, _) => float(py, f64::from_bits(word)),
            (Kind::Complex, 8) => {
                let part = |word: u64| f64::from(f32::from_bits(word as u32));
                complex(py, part(word), part(word >> 32))
            }
            (Kind::Complex, _) => {
                let mut second = [0; 8];
                second.copy_from_slice(&bytes[8..LONGEST]);
                complex(py, f64::from_bits(word), f64::from_le_bytes(second))
            }
            (Kind::Opaque, _) => return Err(self.has_no_value()),
        })
    }

    /// Checks that its elements have values in Python.
    pub(crate) fn check_value(self) -> PyResult<()> {
        match self.kind {
            Kind::Opaque => Err(self.has_no_value()),
            _ => Ok(()),
        }
    }

    fn has_no_value(self) -> PyErr {
        let size = self.size;
        PyTypeError::new_err(format!(
            "an element of {size} bytes of this type has no value in Python: read() gives its bytes"
        ))
    }
}

fn int<'py>(
    py: Python<'py>,
    value: impl IntoPyObject<
        'py,
        Target = PyInt,
        Output = Bound<'py, PyInt>,
        Error = std::convert::Infallible,
    >,
) -> PyResult<Py<PyAny>> {
    Ok(value.into_pyobject(py)?.into_any().unbind())
}

fn float(py: Python<'_>, value: f64) -> Py<PyAny> {
    PyFloat::new(py, value).into_any().unbind()
}

fn complex(py: Python<'_>, real: f64, imaginary: f64) -> Py<PyAny> {
    PyComplex::from_doubles(py, real, imaginary)
        .into_any()
        .unbind()
}

/// Returns the value of an IEEE 754 binary16 number: sign, 5 exponent bits, 10 fraction bits.
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let magnitude = match (exponent, bits & 0x3ff) {
        // Subnormal: no leading 1, in units of 2^-24.
        (0, _) => fraction * 2_f64.powi(-24),
        (31, 0) => f64::INFINITY,
        (31, _) => f64::NAN,
        _ => (1024.0 + fraction) * 2_f64.powi(exponent - 25),
    };
    sign * magnitude
}
