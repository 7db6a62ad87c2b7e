//! Checkpoints offered as objects: safetensors files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use gdr_object::{
    Checksum, Deadline, Element, Mode, Object, ObjectName, ObjectOptions, ObjectServer, Place,
    Rights, Shape, TensorIndex, TensorSums,
};

use crate::object_spec::{ContentSource, ContentSpec, ObjectSpec, SpecLocation};

/// A safetensors file, and the name of its object: `[NAME=]FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckpointSpec {
    name: ObjectName,
    file: PathBuf,
}

impl FromStr for CheckpointSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, file) = match text.split_once('=') {
            Some((name, file)) => (name.to_owned(), file),
            None => {
                let stem = Path::new(text).file_stem().unwrap_or_default();
                (stem.to_string_lossy().into_owned(), text)
            }
        };
        let name = ObjectName::new(name)
            .map_err(|error| format!("{error}; give NAME=FILE to name the object"))?;
        let file = file.into();
        Ok(Self { name, file })
    }
}

/// A file to serve: the object with the tensors, and their checksums.
pub(super) struct Checkpoint {
    pub(super) object: ObjectSpec,
    pub(super) content: ContentSpec,
    name: ObjectName,
    sums: TensorSums,
}

impl CheckpointSpec {
    /// Reads the file's header, so that only a valid checkpoint is served, and computes the checksums of its tensors.
    pub(super) fn open(&self, location: SpecLocation) -> Result<Checkpoint> {
        let (name, sums) = self
            .sums()
            .with_context(|| format!("{} cannot be served", self.file.display()))?;
        let object = ObjectSpec {
            name: self.name.clone(),
            location,
            element: Element::U8,
            shape: None,
            mode: Mode::Latest,
            checksum: Checksum::Sum64,
            rights: Rights::Read,
        };
        let content = ContentSpec {
            name: Some(self.name.clone()),
            source: ContentSource::File(self.file.clone()),
        };
        Ok(Checkpoint {
            object,
            content,
            name,
            sums,
        })
    }

    fn sums(&self) -> Result<(ObjectName, TensorSums)> {
        let name = TensorSums::name(&self.name)?;
        let file = File::open(&self.file)?;
        let content = file.metadata()?.len();
        let index = TensorIndex::read(content, |len| {
            let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
            file.read_exact_at(&mut bytes, 0)?;
            Ok::<_, io::Error>(bytes)
        });
        let sums = TensorSums::of(&index??, |at, piece| file.read_exact_at(piece, at))?;
        Ok((name, sums))
    }
}

impl Checkpoint {
    /// Makes the object with the checksums, and publishes them.
    pub(super) fn offer_sums(&self, server: &ObjectServer) -> Result<Object> {
        /// How long publishing to an object may take while no peer knows it.
        const LIMIT: Duration = Duration::from_secs(10);
        let bytes = self.sums.bytes();
        let shape = Shape::row(bytes.len() as u64 / Element::U64.size())?;
        let options = ObjectOptions::new(Element::U64, shape);
        let object = server.create(self.name.clone(), options, &Place::host())?;
        object.publish(&bytes, Deadline::after(LIMIT))?;
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use gdr_object::InvalidTensors;
    use snapshot::assert_contains;

    use super::*;

    #[test]
    fn objects_are_named_after_their_files() {
        let named = |text: &str| text.parse::<CheckpointSpec>().map(|it| it.name.to_string());
        assert_eq!(named("a/model-1.safetensors").unwrap(), "model-1");
        assert_eq!(named("w=a/model.safetensors").unwrap(), "w");
        let refused = named("a/my model.safetensors").unwrap_err();
        assert_contains!(refused, "give NAME=FILE");
    }

    #[test]
    fn what_is_no_checkpoint_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        for bytes in [
            &b""[..],
            b"1234567",
            b"\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x02\0\0\0\0\0\0\0{}12",
        ] {
            std::fs::write(&path, bytes).unwrap();
            let spec: CheckpointSpec = path.to_str().unwrap().parse().unwrap();
            let Err(refused) = spec.open(SpecLocation::Host) else {
                panic!("{bytes:?} is served");
            };
            let names_file = refused
                .to_string()
                .contains("x.safetensors cannot be served");
            assert!(
                names_file && refused.root_cause().is::<InvalidTensors>(),
                "{refused:?}"
            );
        }
    }
}
