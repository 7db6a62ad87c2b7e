//! The output of `lspci -vvv`, `lspci -xxxx`, `lspci -t`, `lspci -mm`, `lspci -PP`, or several of these, with or
//! without `-nn` and `-D`.

mod device_line;
mod express;
mod record;
mod tree_view;

use std::collections::{BTreeMap, BTreeSet};

use gdr_pci::Bdf;

use super::left_out::LeftOut;
use super::{ImportError, check_length, plain};
use crate::pci::{BusRange, Function, Parent, PortType, RootBus, Tree};
use crate::source::Absence;
use record::Record;
use tree_view::TreeView;

/// The most functions to read. Large servers have a thousand.
const MOST_FUNCTIONS: usize = 1 << 14;

/// The output of lspci about the functions of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The functions, in listing order.
    pub functions: Vec<Function>,
    /// Lines that belong to no function.
    pub skipped_lines: usize,
    /// The parts of the listing that were not read.
    pub left_out: Vec<LeftOut>,
    /// The root buses in the output of `lspci -t`.
    drawn_roots: BTreeSet<RootBus>,
}

impl Listing {
    /// Builds the tree given by the functions' bus numbers.
    ///
    /// A function without a NUMA node gets that of the other functions of its card, or of its host bridge. Root buses
    /// above which a partial listing lacks bridges are [severed](Tree::is_severed).
    pub fn into_tree(self) -> Tree {
        let is_first = |function: &Function| {
            let Bdf {
                bus,
                device,
                function,
                ..
            } = function.bdf;
            (bus, device, function) == (0, 0, 0)
        };
        // A complete listing starts with the node's first function. One without any buses behind bridges (`-mm`, or
        // without its bridges) does not show what is above its devices.
        let has_buses = self.functions.iter().any(|it| it.bridge.is_some());
        let is_whole = has_buses && self.functions.iter().any(is_first);
        let drawn = self.drawn_roots;
        let mut tree = Tree::from_bus_numbers(self.functions);
        if !is_whole {
            let is_root = |root: &RootBus| {
                let mut inside = tree.children(Parent::Root(*root));
                root.bus == 0 || drawn.contains(root) || inside.any(is_on_root_bus)
            };
            let severed: Vec<RootBus> = (tree.roots().into_iter())
                .filter(|root| !is_root(root))
                .collect();
            tree.sever(severed);
        }
        tree.infer_nodes();
        tree
    }
}

/// Returns whether a function is on a root bus according to its port type, or may be, as a bridge without one.
fn is_on_root_bus(function: &Function) -> bool {
    let port = function.express.as_ref().ok().map(|express| express.port);
    let class = function.identity.class;
    match port {
        Some(PortType::RootPort | PortType::IntegratedEndpoint | PortType::EventCollector) => true,
        Some(PortType::SwitchUpstream | PortType::SwitchDownstream) => false,
        _ => function.is_bridge() || class.is_some_and(|class| class.is_host_bridge()),
    }
}

/// Reads a listing, even if it was quoted, indented or lost its leading blanks.
///
/// Bytes (`-x` to `-xxxx`) take precedence over text. Without `-nn`, only well-known vendors and classes get their IDs.
/// A drawing (`-t`) adds functions and buses that the lists lack. It has no classes: a function gets one if its number
/// or name determines it.
///
/// # Errors
///
/// [`ImportError::TooLong`], or [`ImportError::NotRecognized`] if no line starts with a function's address.
pub fn read(text: &str) -> Result<Listing, ImportError> {
    check_length(text)?;
    let plain = plain::unquoted(text);
    let mut reading = Reading::default();
    for line in plain::lines(&plain) {
        reading.line(line);
    }
    reading.finish(plain::long_lines(&plain))
}

/// A listing, as far as it was read.
#[derive(Default)]
struct Reading {
    functions: Vec<Function>,
    /// The functions described in detail.
    verbose: BTreeSet<Bdf>,
    record: Option<Record>,
    drawing: TreeView,
    drawn: Vec<Function>,
    /// The buses behind bridges, from the paths of `-PP`.
    paths: BTreeMap<Bdf, BusRange>,
    skipped_lines: usize,
    /// Functions beyond the limit.
    beyond: usize,
}

impl Reading {
    fn line(&mut self, line: &str) {
        let is_full = self.functions.len() + self.drawn.len() >= MOST_FUNCTIONS;
        if let Some(Headline { bdf, above, rest }) = headline(line) {
            self.end_record();
            if is_full {
                self.beyond += 1;
            } else {
                self.learn_path(&above, bdf.bus);
                self.record = Some(Record::new(bdf, rest));
            }
        } else if is_full && self.record.is_none() {
            self.skipped_lines += usize::from(!line.trim().is_empty());
        } else if self.drawing.line(line, &mut self.drawn) {
            self.end_record();
        } else if let Some(record) = &mut self.record {
            self.skipped_lines += usize::from(!record.line(line));
        } else {
            self.skipped_lines += usize::from(!line.trim().is_empty());
        }
    }

    /// Records the bridges above a function on a bus.
    fn learn_path(&mut self, above: &[Bdf], bus: u8) {
        let below = above.iter().skip(1).map(|next| next.bus).chain([bus]);
        for (bridge, secondary) in above.iter().zip(below) {
            let range = self.paths.entry(*bridge).or_insert(BusRange {
                secondary,
                subordinate: bus,
            });
            range.subordinate = range.subordinate.max(bus);
        }
    }

    fn end_record(&mut self) {
        if let Some(record) = self.record.take() {
            let is_verbose = record.is_verbose();
            let function = record.finish();
            if is_verbose {
                self.verbose.insert(function.bdf);
            }
            self.functions.push(function);
        }
    }

    fn finish(mut self, long_lines: usize) -> Result<Listing, ImportError> {
        self.end_record();
        settle_drivers(&mut self.functions);
        let mut functions = Vec::new();
        add(&mut functions, self.functions);
        add(&mut functions, self.drawn);
        add_buses(&mut functions, &self.paths);
        self.beyond += functions.len().saturating_sub(MOST_FUNCTIONS);
        functions.truncate(MOST_FUNCTIONS);
        if functions.is_empty() && self.drawing.dropped == 0 {
            return Err(ImportError::NotRecognized {
                expected: "listing of PCI functions",
                found: "no line begins with an address such as 3b:00.0",
                command: "lspci -D -nn -vvv",
            });
        }
        // lspci omits a NUMA node of -1. So a missing node means that firmware assigned none, but only in a detailed
        // record, and if another record has a node.
        let is_named = (functions.iter())
            .any(|function| function.numa.is_ok() && self.verbose.contains(&function.bdf));
        for function in functions.iter_mut().filter(|_| is_named) {
            if function.numa == Err(Absence::NotCollected) && self.verbose.contains(&function.bdf) {
                function.numa = Err(Absence::Missing);
            }
        }
        let mut left_out = Vec::new();
        if self.drawing.dropped > 0 {
            left_out.push(LeftOut::DrawnLines {
                count: self.drawing.dropped,
                first: self.drawing.first_dropped.take().unwrap_or_default(),
            });
        }
        if self.beyond > 0 {
            left_out.push(LeftOut::Functions {
                count: self.beyond,
                read: functions.len(),
            });
        }
        if long_lines > 0 {
            left_out.push(LeftOut::LongLines(long_lines));
        }
        Ok(Listing {
            functions,
            skipped_lines: self.skipped_lines,
            left_out,
            drawn_roots: self.drawing.roots,
        })
    }
}

/// Settles functions without a driver. At the end of each record, `-v` names the driver of any function that has one.
/// If a listing does so for most devices, a record without a driver means that none is bound. The last record may be
/// truncated.
fn settle_drivers(functions: &mut [Function]) {
    const DRIVEN: [u8; 3] = [0x01, 0x02, 0x03];
    let verbose = |function: &Function| function.acs != Err(Absence::NotCollected) || function.gone;
    let (named, silent): (Vec<&Function>, Vec<&Function>) = (functions.iter())
        .filter(|function| verbose(function))
        .filter(|function| {
            let class = function.identity.class;
            class.is_some_and(|class| DRIVEN.contains(&class.base()))
        })
        .partition(|function| function.driver.is_ok());
    if named.len() <= silent.len() {
        return;
    }
    let all_but_last = functions.len().saturating_sub(1);
    for function in &mut functions[..all_but_last] {
        if function.driver == Err(Absence::NotCollected) && verbose(function) {
            function.driver = Err(Absence::Missing);
        }
    }
}

/// Adds what another list or a drawing of the same node shows.
fn add(functions: &mut Vec<Function>, more: Vec<Function>) {
    let mut known: BTreeMap<Bdf, usize> = (functions.iter().enumerate())
        .map(|(at, function)| (function.bdf, at))
        .collect();
    for function in more {
        match known.get(&function.bdf).copied() {
            Some(at) => functions[at].complete(function),
            None => {
                known.insert(function.bdf, functions.len());
                functions.push(function);
            }
        }
    }
}

/// The first line of a function.
struct Headline<'a> {
    bdf: Bdf,
    /// The bridges above it from the root down, in the form of `-PP`.
    above: Vec<Bdf>,
    /// The text after the address.
    rest: &'a str,
}

/// Parses `3b:00.0 3D controller: ...`, with `-PP` after the addresses of the bridges above it, or `Slot: 3b:00.0` of
/// `-vmm`. In an indented listing, the class distinguishes it from other lines with an address.
fn headline(line: &str) -> Option<Headline<'_>> {
    let inside = line.trim_start();
    let slot = ["Slot:", "Device:"];
    if let Some(slot) = slot.iter().find_map(|label| inside.strip_prefix(label)) {
        let bdf = slot.trim().parse().ok()?;
        return Some(Headline {
            bdf,
            above: Vec::new(),
            rest: "",
        });
    }
    let (address, rest) = inside.split_once(' ')?;
    let (path, last) = match address.rsplit_once('/') {
        // `-P` omits the bus number, so functions cannot be distinguished.
        Some((path, last)) if last.contains(':') => (path, last),
        _ => ("", address),
    };
    let mut bdf: Bdf = last.parse().ok()?;
    let mut above: Vec<Bdf> = path.split('/').filter_map(|it| it.parse().ok()).collect();
    // Only the first address has the domain.
    let domain = above.first().map_or(bdf.domain, |first| first.domain);
    for at in above.iter_mut().chain([&mut bdf]) {
        at.domain = domain;
    }
    let is_first = inside.len() == line.len();
    (is_first || device_line::has_class(rest)).then_some(Headline { bdf, above, rest })
}

/// Sets the bus ranges of bridges according to the paths of `-PP`.
fn add_buses(functions: &mut [Function], paths: &BTreeMap<Bdf, BusRange>) {
    for function in functions {
        function.bridge = function.bridge.or(paths.get(&function.bdf).copied());
    }
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::pci::{AcsBits, BarKind, PortType};

    const GPU: &str = "\
3b:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)
\tSubsystem: NVIDIA Corporation Device [10de:16c1]
\tControl: I/O- Mem+ BusMaster+ SpecCycle- MemWINV- VGASnoop- ParErr+
\tStatus: Cap+ 66MHz- UDF- FastB2B- ParErr- DEVSEL=fast >TAbort- <TAbort-
\tNUMA node: 1
\tIOMMU group: 44
\tRegion 0: Memory at 93042000000 (64-bit, prefetchable) [size=16M]
\tRegion 2: Memory at 92000000000 (64-bit, prefetchable) [size=128G]
\tCapabilities: [40] Express (v2) Endpoint, MSI 00
\t\tDevCap:\tMaxPayload 256 bytes, PhantFunc 0, Latency L0s unlimited, L1 <64us
\t\tDevCtl:\tCorrErr+ NonFatalErr+ FatalErr+ UnsupReq+
\t\t\tRlxdOrd+ ExtTag+ PhantFunc- AuxPwr- NoSnoop- FLReset-
\t\t\tMaxPayload 256 bytes, MaxReadReq 4096 bytes
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkCtl:\tASPM L1 Enabled; RCB 64 bytes, Disabled- CommClk+
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x8 (downgraded)
\t\tDevCap2: Completion Timeout: Range AB, TimeoutDis+ NROPrPrP- LTR-
\t\t\t 10BitTagComp+ 10BitTagReq+ OBFF Via message, ExtFmt- EETLPPrefix-
\t\tDevCtl2: Completion Timeout: 65ms to 210ms, TimeoutDis- LTR- 10BitTagReq+ OBFF Disabled,
\tCapabilities: [100 v1] Advanced Error Reporting
\t\tUESta:\tDLP- SDES- TLP- FCP- CmpltTO+ CmpltAbrt- UnxCmplt- RxOF-
\t\tCESta:\tRxErr+ BadTLP- BadDLLP- Rollover- Timeout- AdvNonFatalErr+
\tCapabilities: [200 v1] Address Translation Service (ATS)
\t\tATSCap:\tInvalidate Queue Depth: 00
\t\tATSCtl:\tEnable+, Smallest Translation Unit: 00
\tCapabilities: [bb0 v1] Physical Resizable BAR
\t\tBAR 2: current size: 128GB, supported: 64MB 128MB 128GB
\tCapabilities: [bc0 v1] Single Root I/O Virtualization (SR-IOV)
\t\tIOVCtl:\tEnable- Migration- Interrupt- MSE- ARIHierarchy-
\t\tInitial VFs: 16, Total VFs: 16, Number of VFs: 0, Function Dependency Link: 00
\tKernel driver in use: nvidia
";

    fn only(text: &str) -> Function {
        let mut listing = read(text).unwrap();
        assert_eq!(listing.functions.len(), 1, "{listing:?}");
        listing.functions.remove(0)
    }

    #[test]
    fn words_have_the_same_facts_as_bytes() {
        let gpu = only(GPU);
        assert!(gpu.identity.is_nvidia_gpu());
        assert_eq!(gpu.identity.device.unwrap().to_string(), "2330");
        assert_eq!(gpu.numa.as_ref().unwrap().0, 1);
        assert_eq!(gpu.iommu_group, Ok(44));
        assert_eq!(gpu.driver, Ok("nvidia".to_owned()));
        let express = gpu.express.as_ref().unwrap();
        assert_eq!(express.port, PortType::Endpoint);
        assert_eq!(
            (
                express.payload_capable,
                express.payload,
                express.read_request
            ),
            (256, 256, 4096)
        );
        assert!(express.relaxed_ordering && express.ten_bit_tags && !express.no_snoop);
        assert!(express.aspm.l1 && !express.aspm.l0s);
        assert_eq!(gpu.link.as_ref().unwrap().to_string(), "2.5 GT/s x8");
        assert_eq!(
            gpu.link_capable.as_ref().unwrap().to_string(),
            "32 GT/s x16"
        );
        let bars = gpu.bars.as_ref().unwrap();
        assert_eq!(
            (bars[1].number, bars[1].kind, bars[1].size),
            (2, BarKind::Prefetchable, 128 << 30)
        );
        assert!(gpu.ats.as_ref().unwrap().enabled);
        assert_eq!(gpu.acs, Err(Absence::Missing));
        let aer = gpu.aer.as_ref().unwrap();
        assert_eq!(
            (aer.uncorrectable.bits(), aer.correctable.bits()),
            (1 << 14, 1 | 1 << 13)
        );
        let rebar = gpu.resizable_bars.as_ref().unwrap();
        assert_eq!((rebar[0].bar, rebar[0].largest()), (2, Some(128 << 30)));
        assert_eq!(
            gpu.sriov
                .as_ref()
                .ok()
                .map(|sriov| (sriov.enabled, sriov.total)),
            Some((false, 16))
        );
    }

    #[test]
    fn a_bridge_names_its_buses_and_its_acs_bits() {
        let port = only(
            "0000:40:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 153e\n\
             \tStatus: Cap+ 66MHz-\n\
             \tBus: primary=40, secondary=41, subordinate=48, sec-latency=0\n\
             \tCapabilities: [58] Express (v2) Root Port (Slot+), MSI 00\n\
             \t\tSltCap:\tAttnBtn- PwrCtrl-\n\
             \t\t\tSlot #9, PowerLimit 75W; Interlock- NoCompl+\n\
             \tCapabilities: [2a0 v1] Access Control Services\n\
             \t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans+\n\
             \t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir- UpstreamFwd+ EgressCtrl- DirectTrans-\n",
        );
        let buses = port.bridge.unwrap();
        assert_eq!((buses.secondary, buses.subordinate), (0x41, 0x48));
        assert!(port.is_bridge());
        let acs = port.acs.as_ref().unwrap();
        assert_eq!(acs.redirecting(), AcsBits::REQUEST_REDIRECT);
        assert_eq!(acs.at.unwrap().0, 0x2a0);
        assert_eq!(port.numa, Err(Absence::NotCollected));
    }

    #[test]
    fn what_only_root_may_read_is_denied_and_not_missing() {
        let denied =
            only("3b:00.0 0302: 10de:2330\n\tStatus: Cap+\n\tCapabilities: <access denied>\n");
        assert!(denied.identity.is_nvidia_gpu());
        assert_eq!(
            (denied.express, denied.acs),
            (Err(Absence::Denied), Err(Absence::Denied))
        );
        let short = only("3b:00.0 3D controller: NVIDIA Corporation Device 2330\n");
        assert_eq!(short.acs, Err(Absence::NotCollected));
        let none = only("00:00.0 Host bridge: Intel Corporation Device 1\n\tStatus: Cap- 66MHz-\n");
        assert_eq!(none.acs, Err(Absence::Missing));
    }

    #[test]
    fn bytes_take_precedence_over_words() {
        let mut text = String::from("3b:00.0 VGA compatible controller: Wrong\n");
        let mut bytes = [0_u8; 64];
        bytes[0..4].copy_from_slice(&[0xb3, 0x15, 0x21, 0x10]);
        bytes[0x06] = 0x10;
        bytes[0x0b] = 0x02;
        bytes[0x34] = 0x60;
        for (row, sixteen) in bytes.chunks(16).enumerate() {
            let hex: Vec<String> = sixteen.iter().map(|byte| format!("{byte:02x}")).collect();
            text += &format!("{row:x}0: {}\n", hex.join(" "));
        }
        let nic = only(&text);
        assert!(nic.identity.is_network());
        assert_eq!(nic.identity.vendor.unwrap().to_string(), "15b3");
        assert_eq!(nic.acs, Err(Absence::NotCollected));
    }

    #[test]
    fn a_function_whose_bytes_are_ones_is_gone() {
        for text in [
            "01:00.0 VGA compatible controller: NVIDIA Corporation GP107M (rev ff) (prog-if ff)\n",
            "01:00.0 3D controller [0302]: NVIDIA Corporation GH100 [10de:2330]\n\
             \t!!! Unknown header type 7f\n\tKernel driver in use: nvidia\n",
        ] {
            let gpu = only(text);
            assert!(gpu.gone && gpu.identity.is_nvidia_gpu(), "{text}");
        }
        let ones = format!("00: {}\n", vec!["ff"; 16].join(" "));
        let rows: String = (0..4)
            .map(|row| ones.replacen("00:", &format!("{row}0:"), 1))
            .collect();
        let gpu = only(&format!("01:00.0 0302: 10de:2330\n{rows}"));
        assert!(gpu.gone && gpu.identity.is_nvidia_gpu());
        assert!(!only(GPU).gone);
    }

    /// Returns the drivers read from a `-v` listing of four functions with these drivers.
    fn with_drivers(drivers: [Option<&str>; 4]) -> Vec<crate::source::Datum<String>> {
        let text: String = (0..)
            .zip(drivers)
            .map(|(bus, driver): (u8, _)| {
                let driver = driver.map_or(String::new(), |it| {
                    format!("\tKernel driver in use: {it}\n")
                });
                format!(
                    "{bus:02x}:00.0 3D controller [0302]: NVIDIA Corporation X [10de:2330]\n\
                     \tStatus: Cap+ 66MHz-\n{driver}"
                )
            })
            .collect();
        let functions = read(&text).unwrap().functions;
        functions.into_iter().map(|it| it.driver).collect()
    }

    #[test]
    fn a_record_without_a_driver_means_none_if_the_others_have_one() {
        let nvidia = Some("nvidia");
        let drivers = with_drivers([nvidia, None, nvidia, nvidia]);
        assert_eq!(drivers[1], Err(Absence::Missing));
        // The last record may be truncated, and a listing that names few drivers is not conclusive.
        let drivers = with_drivers([nvidia, nvidia, nvidia, None]);
        assert_eq!(drivers[3], Err(Absence::NotCollected));
        let drivers = with_drivers([nvidia, None, None, nvidia]);
        assert_eq!(drivers[1], Err(Absence::NotCollected));
        let offered = only("3b:00.0 0302: 10de:2330\n\tKernel modules: nouveau, nvidia\n");
        assert_eq!(offered.driver, Err(Absence::Missing));
    }

    #[test]
    fn a_listing_without_end_is_read_up_to_a_bound() {
        let text: String = (0..2 * MOST_FUNCTIONS as u32)
            .map(|n| format!("{:x}:{:02x}:00.0 Host bridge: X\n", n >> 8, n & 0xff))
            .collect();
        let listing = read(&text).unwrap();
        assert_eq!(listing.functions.len(), MOST_FUNCTIONS);
        assert_eq!(
            listing.left_out,
            [LeftOut::Functions {
                count: MOST_FUNCTIONS,
                read: MOST_FUNCTIONS
            }]
        );
    }

    #[test]
    fn garbage_is_counted_and_an_empty_listing_is_an_error() {
        let listing =
            read("$ lspci\n\n00:00.0 Host bridge: X\nnot indented\n\t\tLnkSta:\n").unwrap();
        assert_eq!((listing.functions.len(), listing.skipped_lines), (1, 2));
        let error = read("hello\n").unwrap_err().to_string();
        assert_contains!(error, "lspci -D -nn -vvv");
    }

    #[test]
    fn only_in_a_record_with_details_a_missing_node_means_none() {
        let page = "\
3b:00.0 3D controller: NVIDIA Corporation GH100
\tStatus: Cap+ 66MHz-
\tNUMA node: 1
5e:00.0 3D controller: NVIDIA Corporation GH100
\tStatus: Cap+ 66MHz-
-+-[0000:3a]---01.0-[3b]----00.0  NVIDIA Corporation GH100
 +-[0000:5d]---01.0-[5e]----00.0  NVIDIA Corporation GH100
 \\-[0000:85]-+-01.0-[86]----00.0  NVIDIA Corporation GH100
             \\-03.0-[87]----00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
";
        let listing = read(page).unwrap();
        let numa = |at: &str| {
            let all = &listing.functions;
            let bdf: Bdf = at.parse().unwrap();
            all.iter().find(|it| it.bdf == bdf).map(|it| it.numa)
        };
        assert_eq!(numa("5e:00.0"), Some(Err(Absence::Missing)));
        assert_eq!(numa("86:00.0"), Some(Err(Absence::NotCollected)));
        assert_eq!(numa("87:00.0"), Some(Err(Absence::NotCollected)));
    }

    #[test]
    fn a_function_without_a_record_is_on_the_node_of_its_card_or_host_bridge() {
        let page = "\
3b:00.0 3D controller: NVIDIA Corporation GH100
\tStatus: Cap+ 66MHz-
\tNUMA node: 1
-+-[0000:3a]-+-01.0-[3b]--+-00.0  NVIDIA Corporation GH100
 |           |            \\-00.1  NVIDIA Corporation Audio
 |           \\-03.0-[3c]----00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
 \\-[0000:85]---01.0-[86]----00.0  NVIDIA Corporation GH100
";
        let tree = read(page).unwrap().into_tree();
        let numa = |at: &str| tree.get(at.parse().unwrap()).unwrap().numa;
        for at in ["3b:00.1", "3c:00.0", "3a:01.0"] {
            assert_eq!(numa(at), Ok(crate::pci::NumaNode(1)), "{at}");
        }
        assert_eq!(numa("86:00.0"), Err(Absence::NotCollected));
    }

    #[test]
    fn end_points_without_the_bridges_above_them_are_severed() {
        let severed = |text: &str| {
            let tree = read(text).unwrap().into_tree();
            let roots = tree.roots();
            let severed = roots.iter().filter(|root| tree.is_severed(**root));
            severed.map(ToString::to_string).collect::<Vec<_>>()
        };
        let ends = "3b:00.0 3D controller: NVIDIA\n5e:00.0 Infiniband controller: Mellanox\n";
        assert_eq!(severed(ends), ["pci0000:3b", "pci0000:5e"]);
        // A guest's devices on bus 0, and a complete listing.
        assert!(severed("0001:00:00.0 3D controller: NVIDIA\n").is_empty());
        let whole = "00:00.0 Host bridge: Intel\n00:01.0 PCI bridge: Intel\n\
                     \tBus: primary=00, secondary=01, subordinate=01\n";
        assert!(severed(&format!("{whole}{ends}")).is_empty());
        let port = "3a:01.0 PCI bridge: Intel\n\tBus: primary=3a, secondary=3b, subordinate=3b\n";
        assert_eq!(severed(&format!("{port}{ends}")), ["pci0000:5e"]);
        let switch =
            "\tCapabilities: [68] Express (v2) Upstream Port, MSI 00\n\t\tMaxReadReq 512\n";
        assert_eq!(
            severed(&format!("{port}{switch}{ends}")),
            ["pci0000:3a", "pci0000:5e"]
        );
    }

    #[test]
    fn an_indented_or_stripped_listing_has_the_same_facts() {
        let stripped: String = GPU
            .lines()
            .map(|line| line.trim().to_owned() + "\n")
            .collect();
        let indented: String = GPU.lines().map(|line| format!("    {line}\n")).collect();
        let quoted: String = GPU.lines().map(|line| format!("> {line}\n")).collect();
        for text in [stripped, indented, quoted] {
            assert_eq!(only(&text), only(GPU), "{text}");
            assert_eq!(read(&text).unwrap().skipped_lines, 0, "{text}");
        }
    }

    #[test]
    fn the_short_form_of_details_names_node_and_group_and_leaves_registers_unknown() {
        let gpu = only(
            "3b:00.0 3D controller: NVIDIA Corporation GH100\n\
             \tFlags: bus master, fast devsel, latency 0, IRQ 18, NUMA node 1, IOMMU group 44\n\
             \tCapabilities: [60] Express Endpoint, MSI 00\n\
             \tCapabilities: [2a0] Access Control Services\n\
             \tKernel driver in use: nvidia\n",
        );
        assert_eq!(gpu.numa, Ok(crate::pci::NumaNode(1)));
        assert_eq!(gpu.iommu_group, Ok(44));
        assert_eq!(gpu.acs, Err(Absence::NotCollected));
        assert_eq!(gpu.ats, Err(Absence::Missing));
    }

    #[test]
    fn two_lists_of_one_machine_complete_each_other() {
        let page =
            format!("{GPU}\n3b:00.0 3D controller [0302]: NVIDIA Corporation X [10de:2330]\n");
        assert_eq!(only(&page), only(GPU));
        let page = format!("3b:00.0 3D controller: NVIDIA Corporation X\n\n{GPU}");
        assert_eq!(only(&page).numa, only(GPU).numa);
        assert_eq!(only(&page).identity.device, only(GPU).identity.device);
    }
}
