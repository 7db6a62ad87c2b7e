//! The elements of an object, and their arrangement.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The type of an object's elements. The bytes are never interpreted; the type lets a reader check that
/// the owner publishes what it expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub enum Element {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F8E4M3,
    F8E5M2,
    F16,
    Bf16,
    F32,
    F64,
}

/// A text that names no element type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an element type; use one of {known}", known = Element::names())]
pub struct InvalidElement(String);

impl Element {
    /// Every element type.
    pub const ALL: [Self; 14] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::U64,
        Self::I64,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::F16,
        Self::Bf16,
        Self::F32,
        Self::F64,
    ];

    /// Returns the name, such as `u8` or `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F8E4M3 => "f8e4m3",
            Self::F8E5M2 => "f8e5m2",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }

    /// Returns the size of an element in bytes.
    pub const fn size(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Element {
    type Err = InvalidElement;

    fn from_str(text: &str) -> Result<Self, InvalidElement> {
        let named = Self::ALL.into_iter().find(|it| it.name() == text);
        named.ok_or_else(|| InvalidElement(text.chars().take(32).collect()))
    }
}

/// The number of elements along each dimension of an object, the slowest-varying dimension first. No
/// dimension is 0; a shape without dimensions is a scalar.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u64>", into = "Vec<u64>")]
pub struct Shape(Vec<u64>);

impl Shape {
    /// The maximum number of dimensions.
    pub const MOST: usize = 16;

    /// Creates a shape from its dimensions.
    ///
    /// # Errors
    /// [`Error::Shape`] for a dimension of 0, more than 16 of them, or more elements than 2^63.
    pub fn new(dimensions: impl Into<Vec<u64>>) -> Result<Self> {
        let dimensions = dimensions.into();
        let wrong = |why| Error::Shape {
            shape: dimensions.iter().take(Self::MOST).copied().collect(),
            why,
        };
        if dimensions.len() > Self::MOST {
            return Err(wrong("it has more than 16 dimensions"));
        }
        if dimensions.contains(&0) {
            return Err(wrong("it has no elements"));
        }
        let count = dimensions
            .iter()
            .try_fold(1_u64, |count, dimension| count.checked_mul(*dimension));
        if count.is_none_or(|count| count > 1 << 63) {
            return Err(wrong("it has more elements than any memory"));
        }
        Ok(Self(dimensions))
    }

    /// Creates the shape of a one-dimensional row of elements.
    ///
    /// # Errors
    /// Same as [`Shape::new`].
    pub fn row(elements: u64) -> Result<Self> {
        Self::new([elements])
    }

    /// Returns the dimensions.
    pub fn dimensions(&self) -> &[u64] {
        &self.0
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        self.0.iter().product()
    }

    /// Returns the size of these elements in bytes.
    ///
    /// # Errors
    /// [`Error::Shape`] if they exceed the address space.
    pub fn bytes(&self, element: Element) -> Result<u64> {
        let bytes = self.elements().checked_mul(element.size());
        bytes
            .filter(|bytes| *bytes <= 1 << 46)
            .ok_or_else(|| Error::Shape {
                shape: self.0.clone(),
                why: "it has more bytes than an address space",
            })
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text: Vec<String> = self.0.iter().map(u64::to_string).collect();
        f.pad(&format!("[{}]", text.join(", ")))
    }
}

impl TryFrom<Vec<u64>> for Shape {
    type Error = Error;

    fn try_from(dimensions: Vec<u64>) -> Result<Self> {
        Self::new(dimensions)
    }
}

impl From<Shape> for Vec<u64> {
    fn from(shape: Shape) -> Self {
        shape.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_types_are_found_by_their_names() {
        for element in Element::ALL {
            assert_eq!(element.name().parse(), Ok(element));
            let json = serde_json::to_string(&element).unwrap();
            assert_eq!(json, format!("\"{element}\""));
        }
        let error = "float".parse::<Element>().unwrap_err().to_string();
        assert!(error.contains("bf16, f32"), "{error}");
    }

    #[test]
    fn a_shape_without_elements_or_with_too_many_is_refused() {
        for (bad, why) in [
            (vec![0], "no elements"),
            (vec![3, 0, 2], "no elements"),
            (vec![1; 17], "more than 16"),
            (vec![u64::MAX, 2], "any memory"),
        ] {
            let error = Shape::new(bad).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let huge = Shape::new([1 << 46]).unwrap();
        assert!(huge.bytes(Element::U8).is_ok());
        assert!(huge.bytes(Element::U16).is_err());
        assert_eq!(Shape::new([]).unwrap().bytes(Element::F64).unwrap(), 8);
        assert_eq!(Shape::new([3, 5]).unwrap().to_string(), "[3, 5]");
    }
}
