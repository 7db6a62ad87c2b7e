//! The node that a command reads: this one, a capture of another, or the example.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use gdr_node::archive::{Archive, ArchiveError};
use gdr_node::import::nccl_xml::NcclTopology;
use gdr_node::import::topo_matrix::Matrices;
use gdr_node::import::{Assembled, Assembly, ImportError, LeftOut, MAX_TEXT};
use gdr_node::{Inventory, LiveRoot, MemorySource, Source, example};

use crate::document::{self, Utc};
use crate::exit::{InputError, UsageError};
use crate::host_source;

/// A node.
pub(crate) struct Node {
    /// Source for further reads.
    pub(crate) source: Box<dyn Source>,
    /// The inventory.
    pub(crate) inventory: Inventory,
    /// Time of collection in seconds since 1970, if the archive has it.
    pub(crate) collected: Option<u64>,
}

impl Node {
    fn read(source: Box<dyn Source>) -> Self {
        let inventory = Inventory::read(source.as_ref());
        Self {
            source,
            inventory,
            collected: None,
        }
    }

    /// Returns a node with nothing else collected.
    pub(crate) fn of_devices(inventory: Inventory) -> Self {
        Self {
            source: Box::new(MemorySource::partial()),
            inventory,
            collected: None,
        }
    }
}

/// A node, or other tools' output about distances in one.
pub(crate) enum Known {
    /// A node.
    Node(Node),
    /// Only its devices.
    Devices(Inventory),
    /// Distances without a tree, and what else is known.
    Distances(Matrices, Vec<NcclTopology>, Node),
}

impl Known {
    /// Returns the parts of the captures that were not read.
    fn left_out(&self) -> &[LeftOut] {
        match self {
            Self::Node(node) => &node.inventory.left_out,
            Self::Devices(inventory) => &inventory.left_out,
            Self::Distances(matrices, ..) => &matrices.left_out,
        }
    }
}

/// Maximum number of files to read from a directory of captures.
const MOST_FILES: usize = 256;

/// Options that choose a node.
#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    /// Use the built-in example node: eight GPUs, ten NICs, two faults
    #[arg(long)]
    example: bool,

    /// Read another node instead: an archive from `gdr collect` or hwloc-gather-topology, a copy of
    /// its root directory, a directory of captures, or the output of lspci, nvidia-smi,
    /// nvidia-bug-report.sh, dmesg, NCCL, lstopo or rdma_topo (- reads standard input). Repeat to
    /// combine several captures of one node
    #[arg(long, value_name = "PATH", conflicts_with = "example")]
    from: Vec<PathBuf>,
}

impl Which {
    /// Reads the node.
    pub(crate) fn open(&self) -> Result<Node> {
        match self.look()? {
            Known::Node(node) => Ok(node),
            Known::Devices(inventory) => Ok(Node::of_devices(inventory)),
            Known::Distances(matrices, ..) if !matrices.all.is_empty() => Err(InputError(format!(
                "{}: this command needs a PCI tree, which an nvidia-smi matrix does not contain; `gdr topo` shows the matrix",
                self.name()
            ))
            .into()),
            Known::Distances(..) => Err(InputError(format!(
                "{}: this command needs ports and host bridges, which an NCCL topology does not contain; \
                 `gdr topo --from` shows it, and says where NCCL uses GPUDirect RDMA",
                self.name()
            ))
            .into()),
        }
    }

    /// Returns the options that chose it.
    pub(crate) fn name(&self) -> String {
        let named: Vec<String> = self
            .from
            .iter()
            .map(|it| it.display().to_string())
            .collect();
        if named.is_empty() {
            "this node".to_owned()
        } else {
            named.join(", ")
        }
    }

    /// Reads the node, or what is known about it, and reports on standard error what was not read.
    pub(crate) fn look(&self) -> Result<Known> {
        let known = self.read()?;
        if self.is_elsewhere() {
            document::is_about(match &known {
                Known::Node(node) | Known::Distances(.., node) => Some(node.source.as_ref()),
                Known::Devices(_) => None,
            });
        }
        Ok(known)
    }

    fn read(&self) -> Result<Known> {
        let source: Box<dyn Source> = match self.from.as_slice() {
            _ if self.example => Box::new(example::node()),
            [] => Box::new(host_source::this_node()),
            paths => {
                let found = known(paths)?;
                for left_out in found.left_out() {
                    anstream::eprintln!("note: {left_out}");
                }
                return Ok(found);
            }
        };
        Ok(Known::Node(Node::read(source)))
    }

    /// Returns the caption of a picture: the node's name, its file, and the time of the capture.
    pub(crate) fn title(&self, node: &Node) -> String {
        let host = node.source.text("/proc/sys/kernel/hostname").ok();
        let host = host.filter(|host| !host.is_empty());
        if self.example {
            return "example node".to_owned();
        }
        let Some(path) = self.from.first() else {
            let host = host.unwrap_or_else(|| "this node".to_owned());
            return format!("{host}, {}", day(SystemTime::now()));
        };
        let modified = path.metadata().and_then(|about| about.modified()).ok();
        let parts = [
            host,
            (!is_standard_input(path)).then(|| self.file()).flatten(),
            modified.map(|time| format!("file of {}", day(time))),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        parts.join(", ")
    }

    /// Returns the names of the files, without their directories.
    pub(crate) fn file(&self) -> Option<String> {
        let names: Vec<String> = (self.from.iter())
            .map(|path| {
                if is_standard_input(path) {
                    return "standard input".to_owned();
                }
                let name = path.file_name().unwrap_or(path.as_os_str());
                name.to_string_lossy().into_owned()
            })
            .collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Returns whether it is the example.
    pub(crate) fn is_example(&self) -> bool {
        self.example
    }

    /// Returns whether it is not this machine.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.example || !self.from.is_empty()
    }
}

/// A node to compare with others.
pub(crate) struct Named {
    /// Its name in the output.
    pub(crate) name: String,
    /// Its source.
    pub(crate) source: Box<dyn Source>,
}

impl Named {
    /// Opens the node in a capture, named by its host name, otherwise by its file name.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let source = capture(path)?;
        let host = source.text("/proc/sys/kernel/hostname").ok();
        let name = host
            .filter(|host| !host.is_empty() && !host.contains(char::is_control))
            .unwrap_or_else(|| path.display().to_string());
        Ok(Self { name, source })
    }

    /// Returns this machine.
    pub(crate) fn this() -> Self {
        Self {
            name: "this node".to_owned(),
            source: Box::new(host_source::this_node()),
        }
    }
}

/// Opens a capture of a whole node.
fn capture(path: &Path) -> Result<Box<dyn Source>> {
    match known(&[path.to_owned()])? {
        Known::Node(node) => Ok(node.source),
        Known::Devices(_) | Known::Distances(..) => Err(InputError(format!(
            "{}: the capture covers only part of a node; pass an archive from `gdr collect`",
            path.display()
        ))
        .into()),
    }
}

/// Combines captures of one node; an error names the file.
fn known(paths: &[PathBuf]) -> Result<Known> {
    let mut assembly = Assembly::default();
    let mut collected = None;
    for path in paths {
        let at = add(&mut assembly, path).map_err(|error| match error.downcast_ref() {
            _ if error.is::<UsageError>() => error,
            // The error already names the file.
            Some(ArchiveError::File { .. }) => InputError(crate::words(&error)).into(),
            _ => InputError(format!("{}: {}", path.display(), crate::words(&error))).into(),
        })?;
        collected = collected.or(at);
    }
    let names: Vec<String> = paths.iter().map(|it| it.display().to_string()).collect();
    let names = names.join(", ");
    let assembled = (assembly.finish())
        .map_err(|error| InputError(format!("{names}: {}", crate::words(&error.into()))))?;
    Ok(match assembled {
        Assembled::Node {
            source,
            has_files: true,
            inventory,
        } => Known::Node(Node {
            source,
            inventory: *inventory,
            collected,
        }),
        Assembled::Node { inventory, .. } => Known::Devices(*inventory),
        Assembled::Distances {
            matrices,
            nccl,
            source,
            inventory,
        } => Known::Distances(
            matrices,
            nccl,
            Node {
                source,
                inventory: *inventory,
                collected,
            },
        ),
        _ => {
            let unknown = format!("{names}: this kind of capture cannot be shown yet");
            return Err(InputError(unknown).into());
        }
    })
}

/// Adds a capture, which may be a directory. Returns the time of collection in seconds since 1970, if the capture has
/// it.
fn add(assembly: &mut Assembly, path: &Path) -> Result<Option<u64>> {
    if path.is_dir() {
        let root = root(path);
        if root.join("sys").is_dir() || root.join("proc").is_dir() {
            assembly.add_source(Box::new(LiveRoot::at(root)));
            return Ok(None);
        }
        add_all(assembly, path)?;
        return Ok(None);
    }
    let bytes = head(path)?;
    if Archive::is_archive(&bytes) {
        // Standard input cannot be read twice.
        let archive = if is_standard_input(path) {
            Archive::read(&bytes[..])?
        } else {
            Archive::open(path)?
        };
        let collected = Some(archive.origin().collected).filter(|at| *at != 0);
        assembly.add_source(Box::new(archive));
        return Ok(collected);
    }
    let name = path.file_name().unwrap_or(path.as_os_str());
    assembly.add(&name.to_string_lossy(), &bytes)?;
    Ok(None)
}

/// Adds the files of a directory that are captures.
fn add_all(assembly: &mut Assembly, directory: &Path) -> Result<()> {
    let mut files: Vec<PathBuf> = (directory.read_dir()?.flatten())
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    let mut found = 0;
    for (number, path) in files.iter().enumerate() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let added = if number < MOST_FILES {
            let bytes = head(path)?;
            assembly.add(&name, &bytes)
        } else {
            Err(ImportError::TooLarge("256 files"))
        };
        match added {
            Ok(()) => found += 1,
            Err(error) => assembly.leave_out(&name, &error),
        }
    }
    if found == 0 {
        return Err(InputError(format!(
            "{} is neither a copy of a node's root directory nor a directory of captures: it contains \
             neither sys nor proc, and none of its {} files is the output of a supported tool",
            directory.display(),
            files.len()
        ))
        .into());
    }
    Ok(())
}

/// `2026-11-22`, in UTC.
fn day(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let Utc {
        year, month, day, ..
    } = Utc::of(since.as_secs());
    format!("{year:04}-{month:02}-{day:02}")
}

fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

/// Returns the bytes of a file or of standard input, up to one more than the maximum length of a text.
fn head(path: &Path) -> Result<Vec<u8>> {
    let file = |source| ArchiveError::File {
        path: path.to_owned(),
        source,
    };
    let input: Box<dyn Read> = if is_standard_input(path) {
        let input = io::stdin();
        if input.is_terminal() {
            return Err(UsageError(
                "standard input is a terminal: name a file, or pipe one in".to_owned(),
            )
            .into());
        }
        Box::new(input)
    } else {
        Box::new(File::open(path).map_err(file)?)
    };
    let mut bytes = Vec::new();
    let mut input = input.take(MAX_TEXT as u64 + 1);
    input.read_to_end(&mut bytes).map_err(file)?;
    Ok(bytes)
}

/// Returns the root in a directory: the directory itself, or the only directory in it, as in unpacked archives of
/// hwloc-gather-topology.
fn root(path: &Path) -> PathBuf {
    if path.join("sys").is_dir() {
        return path.to_owned();
    }
    let inside = path.read_dir().into_iter().flatten().flatten();
    let mut roots = inside
        .map(|entry| entry.path())
        .filter(|inside| inside.join("sys").is_dir());
    match (roots.next(), roots.next()) {
        (Some(only), None) => only,
        _ => path.to_owned(),
    }
}
