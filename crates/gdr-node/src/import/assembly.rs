//! Combining several captures of one node.

use gdr_pci::Bdf;

use super::detect::{Container, checked};
use super::nccl_xml::NcclTopology;
use super::rdma_tools::RdmaTools;
use super::topo_matrix::{Matrices, TopoMatrix};
use super::{Capture, ImportError, LeftOut, MAX_TEXT, bug_report, lspci, smi_query, topo_matrix};
use crate::inventory::Inventory;
use crate::kernel_log;
use crate::numa::NumaLayout;
use crate::nvlink::NvLinks;
use crate::probe::{GpuFacts, Probe};
use crate::source::{Absence, MemorySource, Overlay, Source, virtual_path};
use crate::topology::SmiClass;

/// The most files reported as not being captures.
const MOST_NAMED: usize = 16;

/// Combines captures of one node: outputs of lspci, nvidia-smi, hwloc, NCCL and `nvidia-bug-report.sh`, in separate
/// files, in a tar, or one after the other in a file.
///
/// ```
/// use gdr_node::import::{Assembled, Assembly};
///
/// let mut assembly = Assembly::default();
/// assembly.add("lspci.txt", b"0000:00:00.0 Host bridge: Intel\n0001:00:00.0 3D controller: NVIDIA Corporation X\n")?;
/// assembly.add("dmesg.txt", b"[    1.000000] NVRM: words\n")?;
/// let Assembled::Node { inventory, .. } = assembly.finish()? else { unreachable!() };
/// assert_eq!(inventory.gpus.len(), 1);
/// # Ok::<(), gdr_node::import::ImportError>(())
/// ```
#[derive(Default)]
pub struct Assembly {
    files: Overlay,
    has_files: bool,
    /// All output of lspci.
    listings: String,
    described: Vec<Inventory>,
    /// Output of RDMA and network tools.
    rdma_tools: RdmaTools,
    /// The GPUs listed by nvidia-smi.
    listed_gpus: Vec<Inventory>,
    matrices: Matrices,
    nccl: Vec<NcclTopology>,
    /// The number of active NVLinks of each GPU.
    nvlinks: Vec<u8>,
    left_out: Vec<LeftOut>,
    unnamed: usize,
}

/// The result of combining captures.
#[non_exhaustive]
pub enum Assembled {
    /// A node.
    Node {
        /// Its files, as far as the captures contain them.
        source: Box<dyn Source>,
        /// Whether they contain any.
        has_files: bool,
        /// Its devices.
        inventory: Box<Inventory>,
    },
    /// Distances, without a tree.
    Distances {
        /// The tables of `nvidia-smi topo`.
        matrices: Matrices,
        /// The topologies as NCCL sees them.
        nccl: Vec<NcclTopology>,
        /// Its files, as far as the captures contain them.
        source: Box<dyn Source>,
        /// The GPUs listed by nvidia-smi, without their locations.
        inventory: Box<Inventory>,
    },
}

impl Assembly {
    /// Adds a file: text, possibly compressed, or a tar of such files.
    ///
    /// # Errors
    ///
    /// The readers' errors, and [`ImportError::Unknown`] for a file that is not a capture. Files in a tar that are not
    /// captures are skipped.
    pub fn add(&mut self, name: &str, bytes: &[u8]) -> Result<(), ImportError> {
        match Container::open(bytes)? {
            Container::Text(text) => self.add_text(&text),
            Container::Tar(unpacked) => {
                let mut found = usize::from(unpacked.node.is_some());
                if let Some(node) = unpacked.node {
                    self.add_source(Box::new(node));
                }
                self.unnamed += unpacked.left_out;
                for (path, bytes) in unpacked.others {
                    let added = match Container::open(&bytes) {
                        Ok(Container::Text(text)) => self.add_text(&text),
                        Ok(Container::Tar(_)) => Err(ImportError::Unknown),
                        Err(error) => Err(error),
                    };
                    match added {
                        Ok(()) => found += 1,
                        Err(error) => self.leave_out(&format!("{name}: {path}"), &error),
                    }
                }
                if found == 0 {
                    return Err(ImportError::Unknown);
                }
                Ok(())
            }
        }
    }

    /// Adds a source of files: an archive, a directory.
    pub fn add_source(&mut self, source: Box<dyn Source>) {
        self.files.push(source);
        self.has_files = true;
    }

    /// Records a file that is not a capture.
    pub fn leave_out(&mut self, name: &str, why: &ImportError) {
        if self.left_out.len() < MOST_NAMED {
            self.left_out.push(LeftOut::File {
                name: name.to_owned(),
                why: match why {
                    ImportError::Unknown => "it is not a capture of a known kind".to_owned(),
                    why => why.to_string(),
                },
            });
        } else {
            self.unnamed += 1;
        }
    }

    fn add_text(&mut self, bytes: &[u8]) -> Result<(), ImportError> {
        let bytes = checked(bytes)?;
        if let Some(capture) = Capture::marked_up(&bytes) {
            match capture? {
                Capture::Files(files) => self.add_source(files),
                Capture::Devices(inventory) => self.described.push(*inventory),
                Capture::Matrices(matrices) => self.add_matrices(matrices),
                Capture::Nccl(topology) => self.nccl.push(topology),
            }
            return Ok(());
        }
        let text = String::from_utf8_lossy(&bytes);
        if bug_report::is_report(&text) {
            let report = bug_report::read(&text);
            self.add_source(Box::new(report.files));
            if self.nvlinks.is_empty() {
                self.nvlinks = report.nvlinks;
            }
            if let Some(answer) = &report.smi {
                self.add_answer(answer);
            }
            // A report without an lspci listing still has logs.
            return match self.add_page(&report.pages) {
                Ok(_) | Err(ImportError::NotRecognized { .. }) => Ok(()),
                Err(error) => Err(error),
            };
        }
        let mut found = self.add_page(&text)?;
        if let Some(answer) = smi_query::read(&text) {
            self.add_answer(&answer);
            found = true;
        }
        found |= self.rdma_tools.read(&text);
        // A log is read as a whole. From mixed text, only lines marked as the kernel's are.
        let log = if !found && kernel_log::is_log(&text) {
            text.to_string()
        } else {
            kernel_log::lines_of_kernel(&text)
        };
        if !log.is_empty() {
            let files = MemorySource::partial();
            let log = bug_report::last(&log);
            self.add_source(Box::new(files.file(virtual_path::KERNEL_LOG, log)));
            found = true;
        }
        if found {
            Ok(())
        } else {
            Err(ImportError::Unknown)
        }
    }

    /// Adds nvidia-smi's output about GPUs.
    fn add_answer(&mut self, answer: &Probe<GpuFacts>) {
        if let Ok(devices) = answer.to_file() {
            let files = MemorySource::partial();
            self.add_source(Box::new(files.file(virtual_path::NVML_DEVICES, devices)));
        }
        self.listed_gpus.push(smi_query::inventory(answer));
    }

    /// Adds the output of lspci and `nvidia-smi topo` in mixed text. Returns false if it contains neither.
    fn add_page(&mut self, text: &str) -> Result<bool, ImportError> {
        let is_listing = match lspci::read(text) {
            Ok(_) => {
                if self.listings.len() + text.len() > MAX_TEXT {
                    return Err(ImportError::TooLong(self.listings.len() + text.len()));
                }
                self.listings.push_str(text);
                self.listings.push('\n');
                true
            }
            Err(ImportError::NotRecognized { .. }) => false,
            Err(error) => return Err(error),
        };
        let is_matrix = match topo_matrix::read(text) {
            Ok(matrices) => {
                self.add_matrices(matrices);
                true
            }
            Err(ImportError::NotRecognized { .. }) => false,
            Err(error) => return Err(error),
        };
        Ok(is_listing || is_matrix)
    }

    fn add_matrices(&mut self, more: Matrices) {
        self.matrices.all.extend(more.all);
        self.matrices.peer_access.extend(more.peer_access);
        self.matrices.left_out.extend(more.left_out);
    }

    /// Combines the captures.
    ///
    /// # Errors
    ///
    /// [`ImportError::NotRecognized`] for a listing without a tree, and [`ImportError::Unknown`] if no capture was
    /// added.
    pub fn finish(mut self) -> Result<Assembled, ImportError> {
        if self.unnamed > 0 {
            self.left_out.push(LeftOut::Files(self.unnamed));
        }
        let listed = match self.listings.as_str() {
            "" => None,
            text => Some(Capture::listing(lspci::read(text)?)?),
        };
        if let Some(files) = std::mem::take(&mut self.rdma_tools).files() {
            self.add_source(Box::new(files));
        }
        let source = self.files.simplified();
        let of_files = self.has_files.then(|| Inventory::read(source.as_ref()));
        let is_tree = listed.is_some()
            || !self.described.is_empty()
            || of_files.as_ref().is_some_and(|it| it.tree.is_ok());
        let parts = of_files
            .into_iter()
            .chain(listed)
            .chain(self.described)
            .chain(self.listed_gpus);
        let inventory = parts.reduce(Inventory::complete);
        let has_distances = !self.nccl.is_empty() || self.matrices != Matrices::default();
        if !is_tree && has_distances {
            self.matrices.left_out.extend(self.left_out);
            let unread = || Inventory::of_tree(Err(Absence::NotCollected), NumaLayout::unknown());
            return Ok(Assembled::Distances {
                matrices: self.matrices,
                nccl: self.nccl,
                source,
                inventory: Box::new(inventory.unwrap_or_else(unread)),
            });
        }
        let mut inventory = inventory.ok_or(ImportError::Unknown)?;
        if inventory.nvlinks.is_empty() {
            inventory.nvlinks = nvlinks(&inventory, &self.matrices.all, &self.nvlinks);
        }
        inventory.left_out.extend(self.matrices.left_out);
        inventory.left_out.extend(self.left_out);
        Ok(Assembled::Node {
            source,
            has_files: self.has_files,
            inventory: Box::new(inventory),
        })
    }
}

/// Returns the NVLinks according to a matrix with as many GPUs as the tree, or else the links to the tree's NVSwitches.
fn nvlinks(inventory: &Inventory, matrices: &[TopoMatrix], active: &[u8]) -> Vec<NvLinks> {
    let gpus: Vec<Bdf> = inventory.gpus.iter().map(|gpu| gpu.bdf).collect();
    let pairs = || (0..gpus.len()).flat_map(|a| (a + 1..gpus.len()).map(move |b| (a, b)));
    let links = |a: usize, b: usize, count: u8| NvLinks {
        a: gpus[a],
        b: gpus[b],
        count,
    };
    let columns = |matrix: &TopoMatrix| -> Option<Vec<usize>> {
        // nvidia-smi numbers GPUs by address.
        let place = |number: usize| {
            let name = format!("GPU{number}");
            matrix.devices.iter().position(|device| *device == name)
        };
        let named = matrix.devices.iter().filter(|name| name.starts_with("GPU"));
        (named.count() == gpus.len()).then(|| (0..gpus.len()).map(place).collect())?
    };
    for matrix in matrices {
        let Some(columns) = columns(matrix) else {
            continue;
        };
        let classes = matrix.classes();
        let found: Vec<NvLinks> = pairs()
            .filter_map(|(a, b)| match classes[columns[a]][columns[b]] {
                Some(SmiClass::Nv(count)) => Some(links(a, b, count)),
                _ => None,
            })
            .collect();
        if !found.is_empty() {
            return found;
        }
    }
    if active.len() != gpus.len() || inventory.nvswitches().next().is_none() {
        return Vec::new();
    }
    pairs()
        .map(|(a, b)| links(a, b, active[a].min(active[b])))
        .filter(|links| links.count > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "\
00:00.0 Host bridge: Intel Corporation Device 1
00:01.0 PCI bridge: Intel Corporation Device 2
\tBus: primary=00, secondary=01, subordinate=01
01:00.0 3D controller: NVIDIA Corporation GH100 [H100]
00:02.0 PCI bridge: Intel Corporation Device 2
\tBus: primary=00, secondary=02, subordinate=02
02:00.0 3D controller: NVIDIA Corporation GH100 [H100]
";
    const MATRIX: &str = "\tGPU0\tGPU1\nGPU0\tX\tNV18\nGPU1\tNV18\tX\n";

    fn node(files: &[(&str, &[u8])]) -> (Box<dyn Source>, Inventory) {
        let mut assembly = Assembly::default();
        for (name, bytes) in files {
            assembly.add(name, bytes).unwrap();
        }
        match assembly.finish().unwrap() {
            Assembled::Node {
                source, inventory, ..
            } => (source, *inventory),
            Assembled::Distances { .. } => panic!("no tree"),
        }
    }

    #[test]
    fn files_of_one_machine_are_one_node() {
        let log = b"[    1.000000] NVRM: words\n";
        let (source, inventory) = node(&[
            ("lspci.txt", LISTING.as_bytes()),
            ("topo.txt", MATRIX.as_bytes()),
            ("dmesg", log),
        ]);
        assert_eq!(inventory.gpus.len(), 2);
        assert_eq!(inventory.nvlinks[0].count, 18);
        let kmsg = source.text(virtual_path::KERNEL_LOG);
        assert_eq!(kmsg, Ok("[    1.000000] NVRM: words".to_owned()));
        // All on one page.
        let page = format!("$ lspci -vv\n{LISTING}\n$ nvidia-smi topo -m\n{MATRIX}");
        assert_eq!(
            node(&[("page", page.as_bytes())]).1.nvlinks,
            inventory.nvlinks
        );
    }

    #[test]
    fn a_tar_of_texts_is_a_node_and_lists_what_it_left_out() {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, text) in [
            ("node/lspci.txt", LISTING),
            ("node/topo.txt", MATRIX),
            ("node/readme", "words"),
        ] {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            tar.append_data(&mut header, path, text.as_bytes()).unwrap();
        }
        let bytes = tar.into_inner().unwrap();
        let (_, inventory) = node(&[("all.tar", &bytes)]);
        assert_eq!((inventory.gpus.len(), inventory.nvlinks.len()), (2, 1));
        let left_out: Vec<String> = inventory.left_out.iter().map(ToString::to_string).collect();
        assert_eq!(left_out.len(), 1, "{left_out:?}");
        assert!(
            left_out[0].starts_with("all.tar: node/readme not read"),
            "{left_out:?}"
        );
    }

    #[test]
    fn a_bug_report_is_read_whole() {
        let report = format!(
            "____________________________________________\n\nStart of NVIDIA bug report log file.\n\n\
             uname: Linux node17 6.8.0 #1 x86_64\n\
             ____________________________________________\n\n*** /proc/cmdline\n*** ls: x\niommu=pt\n\
             ____________________________________________\n\n/usr/bin/lspci -nn\n\n{LISTING}\
             03:00.0 Bridge [0680]: NVIDIA Corporation GH100 [NVSwitch] [10de:22a3]\n\
             ____________________________________________\n\n/usr/bin/nvidia-smi nvlink --status\n\n\
             GPU 0: H100\n\t Link 0: 26.5 GB/s\nGPU 1: H100\n\t Link 0: 26.5 GB/s\n"
        );
        let (source, inventory) = node(&[("nvidia-bug-report.log", report.as_bytes())]);
        assert_eq!(source.text("/proc/cmdline"), Ok("iommu=pt".to_owned()));
        assert_eq!((inventory.gpus.len(), inventory.nvlinks[0].count), (2, 1));
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, report.as_bytes()).unwrap();
        let packed = packed.finish().unwrap();
        assert_eq!(node(&[("x.gz", &packed)]).1, inventory);
    }

    #[test]
    fn distances_alone_stay_distances_and_nothing_is_an_error() {
        let mut assembly = Assembly::default();
        assembly.add("a", MATRIX.as_bytes()).unwrap();
        assembly.add("b", MATRIX.as_bytes()).unwrap();
        assert!(assembly.add("c", b"words").is_err());
        let Ok(Assembled::Distances { matrices, .. }) = assembly.finish() else {
            panic!("no distances");
        };
        assert_eq!(matrices.all.len(), 2);
        assert!(Assembly::default().finish().is_err());
        // Other parts of the page do not replace them.
        let smi = "| NVIDIA-SMI 570.86.15  Driver Version: 570.86.15  CUDA Version: 12.8 |\n\
                   | GPU  Name  Persistence-M | Bus-Id  Disp.A | Volatile Uncorr. ECC |\n\
                   |   0  NVIDIA H100    On  | 00000000:1B:00.0 Off |   0 |\n";
        let page = format!("{smi}\n{MATRIX}\n[    1.000000] NVRM: words\n");
        let mut assembly = Assembly::default();
        assembly.add("page", page.as_bytes()).unwrap();
        let Ok(Assembled::Distances {
            source,
            inventory,
            matrices,
            ..
        }) = assembly.finish()
        else {
            panic!("no distances");
        };
        assert_eq!((matrices.all.len(), inventory.gpus.len()), (1, 1));
        assert!(source.text(virtual_path::KERNEL_LOG).is_ok());
        assert!(source.text(virtual_path::NVML_DEVICES).is_ok());
    }
}
