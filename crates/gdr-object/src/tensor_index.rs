//! Locations of a model's tensors within an object's bytes: the layout of a safetensors file.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use safetensors::tensor::{Metadata, TensorInfo};

pub use safetensors::Dtype;

/// Bytes that hold the length of the header.
const LENGTH: usize = 8;
/// Headers are padded to a multiple of this, so that the first tensor begins at such an address of a slot.
const ALIGNMENT: usize = 256;

/// An index of the tensors in an object: their names, element types, shapes and offsets.
///
/// The content of such an object is a [safetensors](https://github.com/huggingface/safetensors) file: the
/// length of the header in eight bytes, the header as JSON, and the elements of all tensors without gaps, in C
/// order and little endian. So `gdr get` writes a file that other tools can read. The header is the same in
/// every epoch, and all tensors in an epoch belong together.
#[derive(Clone)]
pub struct TensorIndex {
    /// Includes the length that precedes it.
    header: Vec<u8>,
    /// In the order of their bytes.
    tensors: Vec<TensorEntry>,
    attributes: BTreeMap<String, String>,
    bytes: u64,
}

/// One tensor of a [`TensorIndex`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorEntry {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Elements along each dimension; none for a scalar.
    pub shape: Vec<u64>,
    /// The offset of its first byte in the object.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// The tensors cannot be indexed, or the bytes are not an index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidTensors {
    /// There is no tensor, so the object would hold nothing to read.
    #[error("there are no tensors; pass at least one with elements")]
    None,
    /// Two tensors have one name.
    #[error("two tensors are named {0:?}; give each tensor a unique name")]
    Twice(String),
    /// The number of bytes of a tensor overflows.
    #[error(
        "the tensor {0:?} is too large for the address space, or not a whole number of bytes; check its shape"
    )]
    TooLarge(String),
    /// An element type that safetensors does not have.
    #[error("{0:?} is not a safetensors element type; use one such as BF16, F32 or I64")]
    Dtype(String),
    /// The content does not begin with a header.
    #[error(
        "the content is not a safetensors file: it has {content} bytes, but claims a header of {header}; \
         publish it with `gdr serve --safetensors` or gdr.torch"
    )]
    HeaderLength {
        /// What the content says.
        header: u64,
        /// Bytes that there are.
        content: u64,
    },
    /// The header cannot be understood.
    #[error("the header of the tensors is not valid: {0}; write the file again")]
    Header(String),
    /// The checksums belong to other tensors.
    #[error(
        "there are {sums} checksums, which does not match one header and {tensors} tensors; serve the \
         file again"
    )]
    Sums {
        /// Checksums.
        sums: usize,
        /// Tensors.
        tensors: usize,
    },
    /// The header describes a different number of bytes than there are.
    #[error(
        "the header describes {described} bytes, but the content has {content}; write the file again"
    )]
    Length {
        /// The header and all tensors.
        described: u64,
        /// Bytes that there are.
        content: u64,
    },
}

impl TensorIndex {
    /// Maximum length of a header that is read: enough for half a million tensors.
    const LONGEST_HEADER: u64 = 64 << 20;

    /// Lays out tensors. Those whose length is a multiple of 16 bytes come first, because GPUs copy them fastest,
    /// and the others follow by element size, to which each one is aligned. `attributes` are stored with them.
    ///
    /// # Errors
    /// [`InvalidTensors::None`], [`InvalidTensors::Twice`], [`InvalidTensors::TooLarge`].
    pub fn new(
        tensors: impl IntoIterator<Item = (String, Dtype, Vec<u64>)>,
        attributes: BTreeMap<String, String>,
    ) -> Result<Self, InvalidTensors> {
        let mut tensors: Vec<_> = tensors.into_iter().collect();
        let is_odd =
            |dtype, shape: &[u64]| bytes_of(dtype, shape).is_none_or(|bytes| bytes % 16 != 0);
        tensors.sort_by_cached_key(|(name, dtype, shape)| {
            (is_odd(*dtype, shape), Reverse(*dtype), name.clone())
        });
        let mut names = BTreeSet::new();
        let (mut infos, mut at) = (Vec::with_capacity(tensors.len()), 0_usize);
        for (name, dtype, shape) in tensors {
            let too_large = || InvalidTensors::TooLarge(name.clone());
            let bytes = bytes_of(dtype, &shape).ok_or_else(too_large)?;
            let end = at.checked_add(bytes).ok_or_else(too_large)?;
            if !names.insert(name.clone()) {
                return Err(InvalidTensors::Twice(name));
            }
            // It fits: the product of all dimensions does, and for a tensor without elements each dimension is checked
            // as well.
            let shape = shape.iter().map(|length| usize::try_from(*length));
            let shape = shape.collect::<Result<_, _>>().map_err(|_| too_large())?;
            let data_offsets = (at, end);
            infos.push((
                name,
                TensorInfo {
                    dtype,
                    shape,
                    data_offsets,
                },
            ));
            at = end;
        }
        if at == 0 {
            return Err(InvalidTensors::None);
        }
        let attributes = (!attributes.is_empty()).then(|| attributes.into_iter().collect());
        let invalid = |error: &dyn fmt::Display| InvalidTensors::Header(error.to_string());
        let metadata = Metadata::new(attributes, infos).map_err(|error| invalid(&error))?;
        let mut json = serde_json::to_vec(&metadata).map_err(|error| invalid(&error))?;
        json.resize(
            (LENGTH + json.len()).next_multiple_of(ALIGNMENT) - LENGTH,
            b' ',
        );
        let mut header = (json.len() as u64).to_le_bytes().to_vec();
        header.extend(json);
        Ok(Self::of(header, &metadata))
    }

    /// Returns the element type with this name, such as `BF16`.
    ///
    /// # Errors
    /// [`InvalidTensors::Dtype`].
    pub fn dtype(name: &str) -> Result<Dtype, InvalidTensors> {
        let named = serde_json::from_value(serde_json::Value::String(name.to_owned()));
        named.map_err(|_| InvalidTensors::Dtype(name.to_owned()))
    }

    /// Reads the header of content that has `content` bytes. `beginning` returns the requested number of its
    /// first bytes; it is called once, or twice if the header is long.
    ///
    /// # Errors
    /// The errors of `beginning`; inside, as [`TensorIndex::parse`].
    pub fn read<E>(
        content: u64,
        mut beginning: impl FnMut(u64) -> Result<Vec<u8>, E>,
    ) -> Result<Result<Self, InvalidTensors>, E> {
        /// Enough for the header of a hundred tensors.
        const FIRST: u64 = 16 << 10;
        let mut bytes = beginning(FIRST.min(content))?;
        if let Some((prefix, _)) = bytes.split_first_chunk() {
            match Self::header_len(*prefix, content) {
                Ok(len) if len > bytes.len() as u64 => bytes = beginning(len)?,
                _ => {}
            }
        }
        Ok(Self::parse(&bytes, content))
    }

    /// Returns the length of the header, with the eight bytes before it.
    fn header_len(prefix: [u8; LENGTH], content: u64) -> Result<u64, InvalidTensors> {
        let header = u64::from_le_bytes(prefix);
        let len = header.checked_add(LENGTH as u64);
        let fits = |len: &u64| *len <= content && *len <= Self::LONGEST_HEADER;
        (len.filter(fits)).ok_or(InvalidTensors::HeaderLength { header, content })
    }

    /// Reads the header: `bytes` are the beginning of content of `content` bytes, with the whole header.
    ///
    /// # Errors
    /// [`InvalidTensors::HeaderLength`], [`InvalidTensors::Header`], [`InvalidTensors::Length`].
    pub fn parse(bytes: &[u8], content: u64) -> Result<Self, InvalidTensors> {
        let short = || InvalidTensors::HeaderLength {
            header: 0,
            content: bytes.len() as u64,
        };
        let (prefix, _) = bytes.split_first_chunk().ok_or_else(short)?;
        let len = Self::header_len(*prefix, content)?;
        let header = usize::try_from(len).ok().and_then(|len| bytes.get(..len));
        let header = header.ok_or_else(short)?;
        let metadata = serde_json::from_slice::<Metadata>(&header[LENGTH..]);
        let metadata = metadata.map_err(|error| InvalidTensors::Header(error.to_string()))?;
        let described = len.saturating_add(metadata.data_len() as u64);
        if described != content {
            return Err(InvalidTensors::Length { described, content });
        }
        Ok(Self::of(header.to_vec(), &metadata))
    }

    fn of(header: Vec<u8>, metadata: &Metadata) -> Self {
        let data = header.len() as u64;
        let names = metadata.offset_keys().into_iter();
        let tensors = names.filter_map(|name| {
            let info = metadata.info(&name)?;
            let (begin, end) = info.data_offsets;
            Some(TensorEntry {
                dtype: info.dtype,
                shape: info.shape.iter().map(|length| *length as u64).collect(),
                offset: data + begin as u64,
                bytes: (end - begin) as u64,
                name,
            })
        });
        let attributes = metadata.metadata().iter().flatten();
        let attributes = attributes.map(|(key, value)| (key.clone(), value.clone()));
        Self {
            tensors: tensors.collect(),
            attributes: attributes.collect(),
            bytes: data + metadata.data_len() as u64,
            header,
        }
    }

    /// Returns the header, with which the content begins.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Returns the tensors, in the order of their offsets.
    pub fn tensors(&self) -> &[TensorEntry] {
        &self.tensors
    }

    /// Returns the attributes that are stored with the tensors.
    pub fn attributes(&self) -> &BTreeMap<String, String> {
        &self.attributes
    }

    /// Returns the size of the content in bytes: the header and all tensors.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Debug for TensorIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorIndex")
            .field("tensors", &self.tensors.len())
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Bytes of a tensor, if they are whole and an address space has as many.
fn bytes_of(dtype: Dtype, shape: &[u64]) -> Option<usize> {
    let elements = shape
        .iter()
        .try_fold(1_u64, |product, length| product.checked_mul(*length));
    let bits = elements?.checked_mul(dtype.bitsize() as u64)?;
    let is_whole = bits % 8 == 0;
    let bytes = isize::try_from(bits / 8).ok()?;
    is_whole.then_some(bytes.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn index(tensors: &[(&str, Dtype, &[u64])]) -> Result<TensorIndex, InvalidTensors> {
        let tensors = tensors
            .iter()
            .map(|(name, dtype, shape)| ((*name).to_owned(), *dtype, shape.to_vec()));
        TensorIndex::new(
            tensors,
            BTreeMap::from([("step".to_owned(), "7".to_owned())]),
        )
    }

    #[test]
    fn tensors_follow_each_other_aligned_and_behind_a_padded_header() {
        let made = index(&[
            ("bias", Dtype::BF16, &[3]),
            ("embed", Dtype::BF16, &[5, 2]),
            ("step", Dtype::I64, &[]),
            ("mask", Dtype::BOOL, &[0, 4]),
            ("gate", Dtype::U8, &[16]),
        ])
        .unwrap();
        assert_eq!(made.header().len() % ALIGNMENT, 0);
        let places = made
            .tensors()
            .iter()
            .map(|it| (&*it.name, it.offset - made.header().len() as u64, it.bytes));
        let expected = [
            ("gate", 0, 16),
            ("mask", 16, 0),
            ("step", 16, 8),
            ("bias", 24, 6),
            ("embed", 30, 20),
        ];
        assert_eq!(places.collect::<Vec<_>>(), expected);
        assert_eq!(made.bytes(), made.header().len() as u64 + 50);
        let mut content = made.header().to_vec();
        content.resize(made.bytes() as usize, 1);
        let read = TensorIndex::read(made.bytes(), |len| {
            Ok::<_, ()>(content[..len as usize].to_vec())
        });
        let read = read.unwrap().unwrap();
        assert_eq!(read.tensors(), made.tensors());
        assert_eq!(read.attributes(), made.attributes());
        // The reference implementation accepts it too.
        let tensors = safetensors::SafeTensors::deserialize(&content).unwrap();
        assert_eq!(tensors.tensor("embed").unwrap().data(), [1; 20]);
    }

    #[test]
    fn a_long_header_is_read_in_two_steps() {
        let names = (0..2000).map(|number| (format!("layer.{number}"), Dtype::F16, vec![1]));
        let made = TensorIndex::new(names, BTreeMap::new()).unwrap();
        let mut asked = Vec::new();
        let read = TensorIndex::read(made.bytes(), |len| {
            asked.push(len);
            Ok::<_, ()>(made.header()[..(len as usize).min(made.header().len())].to_vec())
        });
        assert_eq!(read.unwrap().unwrap().tensors(), made.tensors());
        assert_eq!(asked, [16 << 10, made.header().len() as u64]);
    }

    #[test]
    fn what_makes_no_index_is_named() {
        assert_eq!(index(&[]).unwrap_err(), InvalidTensors::None);
        assert_eq!(
            index(&[("a", Dtype::F32, &[0])]).unwrap_err(),
            InvalidTensors::None
        );
        let twice = index(&[("a", Dtype::F32, &[1]), ("a", Dtype::I8, &[1])]);
        assert_eq!(twice.unwrap_err(), InvalidTensors::Twice("a".to_owned()));
        let large: [&[u64]; 3] = [&[1 << 62, 4], &[1 << 61, 1], &[u64::MAX, 0, 2]];
        for shape in large {
            let refused = index(&[("a", Dtype::F64, shape), ("b", Dtype::U8, &[1])]);
            // A tensor without elements is not too large, whatever its other dimensions are.
            assert_eq!(refused.is_err(), !shape.contains(&0), "{shape:?}");
        }
        assert_eq!(TensorIndex::dtype("F8_E4M3"), Ok(Dtype::F8_E4M3));
        assert_eq!(
            TensorIndex::dtype("bf16"),
            Err(InvalidTensors::Dtype("bf16".to_owned()))
        );
        let part = index(&[("a", Dtype::F4, &[3])]);
        assert_eq!(part.unwrap_err(), InvalidTensors::TooLarge("a".to_owned()));
    }

    #[test]
    fn headers_that_are_cut_or_lie_are_refused() {
        let made = index(&[("a", Dtype::F32, &[4])]).unwrap();
        for len in 0..made.header().len() {
            assert!(
                TensorIndex::parse(&made.header()[..len], made.bytes()).is_err(),
                "{len}"
            );
        }
        for content in [made.bytes() - 1, made.bytes() + 1] {
            let refused = TensorIndex::parse(made.header(), content).unwrap_err();
            assert!(
                matches!(refused, InvalidTensors::Length { .. }),
                "{refused}"
            );
        }
        let huge = TensorIndex::header_len(u64::MAX.to_le_bytes(), u64::MAX);
        assert!(matches!(huge, Err(InvalidTensors::HeaderLength { .. })));
        let longest = TensorIndex::LONGEST_HEADER - LENGTH as u64;
        assert!(TensorIndex::header_len(longest.to_le_bytes(), u64::MAX).is_ok());
        assert!(TensorIndex::header_len((longest + 1).to_le_bytes(), u64::MAX).is_err());
    }

    proptest! {
        #[test]
        fn no_header_panics_and_what_it_describes_is_inside(
            json in "\\{(\"[ab]\":\\{\"dtype\":\"(F32|U8|F4)\",\"shape\":\\[[0-9]{1,20}(,[0-9])?\\],\"data_offsets\":\\[[0-9]{1,20},[0-9]{1,3}\\]\\},?){0,2}\\}",
            data in 0_u64..40,
        ) {
            let mut content = (json.len() as u64).to_le_bytes().to_vec();
            content.extend(json.bytes());
            let len = content.len() as u64 + data;
            if let Ok(index) = TensorIndex::parse(&content, len) {
                for tensor in index.tensors() {
                    prop_assert!(tensor.offset + tensor.bytes <= len);
                }
            }
        }

        #[test]
        fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = TensorIndex::parse(&bytes, bytes.len() as u64);
        }
    }
}
