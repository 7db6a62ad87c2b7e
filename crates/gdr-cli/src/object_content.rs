//! Content of objects, read from files and standard input.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};

use gdr_object::{Error, Result};

use crate::object_spec::ContentSource;

/// Bytes to read at a time.
const CHUNK: usize = 1 << 20;

/// Content cannot be read, or differs in length from the object.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContentError {
    #[error("{from} cannot be read: {source}")]
    Unreadable {
        from: ContentSource,
        #[source]
        source: io::Error,
    },
    #[error(
        "{from} ended after {done} of the object's {of} bytes; provide {of} bytes for each epoch"
    )]
    TooShort {
        from: ContentSource,
        done: u64,
        of: u64,
    },
    #[error("{from} has more bytes than the object, which has {of}; provide exactly {of} bytes")]
    TooLong { from: ContentSource, of: u64 },
    #[error("{from} is empty, but an object has at least one byte; provide its content")]
    Empty { from: ContentSource },
}

impl From<ContentError> for Error {
    fn from(error: ContentError) -> Self {
        Self::Writer(Box::new(error))
    }
}

/// A file or standard input.
pub(crate) struct ContentReader {
    from: ContentSource,
    reader: BufReader<Box<dyn Read + Send>>,
    /// The length of a regular file.
    len: Option<u64>,
}

impl ContentReader {
    pub(crate) fn open(from: &ContentSource) -> Result<Self, ContentError> {
        let unreadable = |source| ContentError::Unreadable {
            from: from.clone(),
            source,
        };
        let (stream, len): (Box<dyn Read + Send>, _) = match from {
            ContentSource::Stdin => (Box::new(io::stdin()), None),
            ContentSource::File(path) => {
                let file = File::open(path).map_err(unreadable)?;
                let metadata = file.metadata().map_err(unreadable)?;
                let len = metadata.is_file().then_some(metadata.len());
                (Box::new(file), len)
            }
        };
        Ok(Self {
            from: from.clone(),
            reader: BufReader::with_capacity(CHUNK, stream),
            len,
        })
    }

    /// Returns the length of the content in bytes. Anything but a regular file is read to its end for that.
    pub(crate) fn measure(&mut self) -> Result<u64, ContentError> {
        let len = match self.len {
            Some(len) => len,
            None => {
                let mut all = Vec::new();
                let read = self.reader.read_to_end(&mut all);
                read.map_err(|source| self.unreadable(source))?;
                let len = all.len() as u64;
                self.reader = BufReader::new(Box::new(io::Cursor::new(all)));
                len
            }
        };
        match len {
            0 => Err(ContentError::Empty {
                from: self.from.clone(),
            }),
            len => Ok(len),
        }
    }

    /// Waits until it is known whether there is more to read, and returns that.
    pub(crate) fn has_more(&mut self) -> Result<bool, ContentError> {
        self.available().map(|bytes| !bytes.is_empty())
    }

    /// Reads the next `len` bytes and calls `write` with each part and its offset.
    pub(crate) fn read(
        &mut self,
        len: u64,
        mut write: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut done = 0;
        while done < len {
            let bytes = self.available()?;
            let part = usize::try_from(len - done).unwrap_or(usize::MAX);
            let part = &bytes[..part.min(bytes.len())];
            if part.is_empty() {
                let from = self.from.clone();
                return Err(ContentError::TooShort {
                    from,
                    done,
                    of: len,
                }
                .into());
            }
            write(done, part)?;
            let read = part.len();
            self.reader.consume(read);
            done += read as u64;
        }
        Ok(())
    }

    /// Fails if there is more than the `of` bytes that were read.
    pub(crate) fn end(&mut self, of: u64) -> Result<(), ContentError> {
        match self.has_more()? {
            false => Ok(()),
            true => Err(ContentError::TooLong {
                from: self.from.clone(),
                of,
            }),
        }
    }

    /// Returns the bytes in memory; at least one unless the content has ended.
    fn available(&mut self) -> Result<&[u8], ContentError> {
        loop {
            match self.reader.fill_buf() {
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.unreadable(error)),
            }
        }
        Ok(self.reader.buffer())
    }

    fn unreadable(&self, source: io::Error) -> ContentError {
        ContentError::Unreadable {
            from: self.from.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use snapshot::assert_contains;

    use super::*;

    fn open(path: &Path) -> Result<ContentReader, ContentError> {
        ContentReader::open(&ContentSource::File(path.to_owned()))
    }

    fn take(content: &mut ContentReader, len: u64) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        content.read(len, |at, part| {
            assert_eq!(at, all.len() as u64);
            all.extend_from_slice(part);
            Ok(())
        })?;
        Ok(all)
    }

    #[test]
    fn a_file_is_read_in_epochs_and_a_part_of_one_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, b"abcdefg").unwrap();
        let mut content = open(file.path()).unwrap();
        assert_eq!(content.measure().unwrap(), 7);
        assert_eq!(take(&mut content, 3).unwrap(), b"abc");
        assert!(matches!(
            content.end(3),
            Err(ContentError::TooLong { of: 3, .. })
        ));
        assert_eq!(take(&mut content, 3).unwrap(), b"def");
        assert!(content.has_more().unwrap());
        let error = take(&mut content, 3).unwrap_err().to_string();
        assert_contains!(error, "ended after 1 of the object's 3 bytes");
    }

    #[test]
    fn content_longer_than_a_chunk_arrives_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..CHUNK + 5).map(|at| (at % 251) as u8).collect();
        std::fs::write(&file, &bytes).unwrap();
        let mut content = open(file.path()).unwrap();
        assert_eq!(take(&mut content, bytes.len() as u64).unwrap(), bytes);
        content.end(bytes.len() as u64).unwrap();
    }

    #[test]
    fn no_file_an_empty_file_and_a_folder_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = open(&folder.path().join("none")).err().unwrap().to_string();
        assert_contains!(missing, "none cannot be read: No such file");
        let empty = tempfile::NamedTempFile::new().unwrap();
        let error = open(empty.path()).unwrap().measure().unwrap_err();
        assert!(matches!(error, ContentError::Empty { .. }));
        let error = open(folder.path()).unwrap().has_more().unwrap_err();
        assert_contains!(error.to_string(), "cannot be read", "{error}");
    }
}
