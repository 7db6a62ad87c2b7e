//! Checksums of the tensors in an object, which identify a damaged one.

use gdr_cuda::Sum64;
use gdr_rdma::Deadline;

use crate::checksum::sum_by;
use crate::epoch::Epoch;
use crate::error::{Error, Result};
use crate::link_shared::LocalMemory;
use crate::name::{InvalidName, ObjectName};
use crate::remote_object::RemoteObject;
use crate::tensor_index::TensorIndex;

/// Bytes of a checksum.
const SUM: usize = 8;

/// A [`Sum64`] for the header and for each tensor in an object that holds a checkpoint.
///
/// The sums are the content of a second object, [`TensorSums::name`], so that the checkpoint stays identical
/// to its file. An object whose tensors change with each epoch has none; there, the checksum of the whole
/// epoch ([`Checksum::Sum64`](crate::Checksum::Sum64)) is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSums(Vec<u64>);

impl TensorSums {
    /// Returns the name of the object that holds the checksums of another one.
    ///
    /// # Errors
    /// [`InvalidName`] if the other name is too long.
    pub fn name(of: &ObjectName) -> Result<ObjectName, InvalidName> {
        ObjectName::new(format!("{of}.sums"))
    }

    /// Computes the sums of content that `read` reads, starting at an offset, until the buffer is full.
    ///
    /// # Errors
    /// The errors of `read`.
    pub fn of<E>(
        index: &TensorIndex,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let sums = parts(index).map(|(_, offset, bytes)| {
            sum_by(bytes, |at, piece| read(offset + at, piece)).map(Sum64::get)
        });
        sums.collect::<Result<_, _>>().map(Self)
    }

    /// Returns the content of the object that holds the sums.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|sum| sum.to_le_bytes()).collect()
    }

    /// Parses such content.
    pub fn parse(bytes: &[u8]) -> Self {
        let (sums, _) = bytes.as_chunks::<SUM>();
        Self(sums.iter().map(|sum| u64::from_le_bytes(*sum)).collect())
    }
}

/// Returns the header and each tensor: name, offset and bytes.
fn parts(index: &TensorIndex) -> impl Iterator<Item = (&str, u64, u64)> {
    let header = ("the header", 0, index.header().len() as u64);
    let tensors = index.tensors().iter();
    let tensors = tensors.map(|tensor| (tensor.name.as_str(), tensor.offset, tensor.bytes));
    std::iter::once(header).chain(tensors)
}

impl RemoteObject {
    /// Reads the checksums of the object's tensors; `None` if its owner offers none.
    ///
    /// # Errors
    /// Same as [`RemoteObject::get_into`].
    pub fn tensor_sums(&self, deadline: Deadline) -> Result<Option<TensorSums>> {
        let Ok(name) = TensorSums::name(self.name()) else {
            return Ok(None);
        };
        let (link, generation) = (&self.binding().link, self.binding().generation());
        match Self::open(link.clone(), name, Some(generation), deadline) {
            Ok(object) => Ok(Some(TensorSums::parse(&object.get(deadline)?.1))),
            Err(Error::NoSuchObject { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Compares the tensors in memory that holds an epoch of the object with `sums`.
    ///
    /// # Errors
    /// [`Error::Tensors`] if there are none, or the checksums belong to others;
    /// [`Error::DamagedTensor`]; [`Error::Rdma`].
    pub fn check_tensors(
        &self,
        epoch: Epoch,
        memory: &LocalMemory,
        sums: Option<&TensorSums>,
        deadline: Deadline,
    ) -> Result<TensorIndex> {
        let index = self.index(|len| {
            let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
            memory.buffer().read_at(0, &mut bytes)?;
            Ok(bytes)
        })?;
        let Some(TensorSums(sums)) = sums else {
            return Ok(index);
        };
        if sums.len() != parts(&index).count() {
            return Err(Error::Tensors {
                name: self.name().clone(),
                source: crate::InvalidTensors::Sums {
                    sums: sums.len(),
                    tensors: index.tensors().len(),
                },
            });
        }
        for ((tensor, offset, bytes), published) in parts(&index).zip(sums) {
            let received = memory.checksum(offset, bytes, deadline)?;
            if received != *published {
                return Err(Error::DamagedTensor {
                    name: self.name().clone(),
                    tensor: tensor.to_owned(),
                    epoch,
                    published: *published,
                    received,
                });
            }
        }
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use gdr_rdma::Security;

    use super::*;
    use crate::{
        Element, InvalidTensors, Link, LinkOptions, ObjectOptions, ObjectServer, Place,
        ServerOptions, Shape,
    };

    #[test]
    fn a_byte_that_is_wrong_is_found_in_its_tensor() {
        let limit = || Deadline::after(Duration::from_secs(60));
        let tensors = [("a", 3), ("b", 300_000), ("c", 0)];
        let tensors =
            tensors.map(|(name, len)| (name.to_owned(), crate::Dtype::U8, Vec::from([len])));
        let index = TensorIndex::new(tensors, Default::default()).unwrap();
        let mut content = index.header().to_vec();
        content.resize(usize::try_from(index.bytes()).unwrap(), 7);
        let sums = TensorSums::of(&index, |at, piece| {
            piece.copy_from_slice(&content[at as usize..][..piece.len()]);
            Ok::<_, Infallible>(())
        })
        .unwrap();
        assert_eq!(TensorSums::parse(&sums.bytes()), sums);

        let server = ObjectServer::bind(
            "127.0.0.1:0".parse().unwrap(),
            ServerOptions::new(Security::Loopback),
        )
        .unwrap();
        let name = ObjectName::new("m").unwrap();
        let create = |name: ObjectName, content: &[u8]| {
            let shape = Shape::row(content.len() as u64).unwrap();
            let options = ObjectOptions::new(Element::U8, shape);
            let object = server.create(name, options, &Place::host()).unwrap();
            object.publish(content, limit()).unwrap();
            object
        };
        let object = create(name.clone(), &content);
        let link = Link::connect(
            server.address(),
            LinkOptions::new(Security::Loopback),
            limit(),
        )
        .unwrap();
        let remote = link.open(name.clone(), limit()).unwrap();
        let memory = link.host_memory(index.bytes()).unwrap();
        assert_eq!(remote.tensor_sums(limit()).unwrap(), None);
        let offered = create(TensorSums::name(&name).unwrap(), &sums.bytes());
        let found = remote.tensor_sums(limit()).unwrap().unwrap();
        assert_eq!(found, sums);
        let check = |sums: &TensorSums| {
            let epoch = remote.get_into(&memory, limit()).unwrap();
            let checked = remote.check_tensors(epoch, &memory, Some(sums), limit());
            checked.map(|index| index.tensors().len())
        };
        assert_eq!(check(&found).unwrap(), 3);
        // The last byte of each.
        for tensor in index.tensors().iter().filter(|tensor| tensor.bytes > 0) {
            let mut wrong = content.clone();
            wrong[(tensor.offset + tensor.bytes - 1) as usize] ^= 1;
            object.publish(&wrong, limit()).unwrap();
            let error = check(&found).unwrap_err();
            let named =
                matches!(&error, Error::DamagedTensor { tensor: it, .. } if *it == tensor.name);
            assert!(named, "{error}");
        }
        let mut wrong = content.clone();
        let space = index.header().len() - 1;
        wrong[space] = b'\n';
        object.publish(&wrong, limit()).unwrap();
        let error = check(&found).unwrap_err().to_string();
        assert!(error.starts_with("the header of m"), "{error}");
        let other = TensorSums::parse(&sums.bytes()[..16]);
        let refused = check(&other).unwrap_err();
        let Error::Tensors { source, .. } = refused else {
            panic!("{refused}");
        };
        let (sums, tensors) = (2, 3);
        assert_eq!(source, InvalidTensors::Sums { sums, tensors });
        drop(offered);
    }
}
