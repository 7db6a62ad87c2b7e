//! `lspci -vvv`, `lspci -xxxx`, `lspci -t`, or several at once, with or without `-nn` and `-D`.

mod drawing;
mod express;
mod headline;
mod record;

use std::collections::BTreeMap;

use gdr_cuda::Bdf;

use super::{ImportError, check_length};
use crate::pci::{Function, Tree};
use crate::source::Datum;
use drawing::Drawing;
use record::Record;

/// The most functions that are read. Large servers have a thousand.
const MOST_FUNCTIONS: usize = 1 << 14;

/// What lspci printed about the functions of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The functions, in the order of the listing.
    pub functions: Vec<Function>,
    /// Lines that belong to no function, and those of functions beyond the first 16384.
    pub skipped_lines: usize,
}

impl Listing {
    /// The tree that the functions form by their bus numbers.
    pub fn into_tree(self) -> Tree {
        Tree::from_bus_numbers(self.functions)
    }
}

/// Reads a listing.
///
/// Bytes (`-x` to `-xxxx`) say more than words and win where both are there. Of a listing
/// without `-nn` only well-known makers and classes get their numbers. Of a drawing (`-t`) come the
/// functions and buses that the lists do not have; it has no classes, so that with `-tv` only
/// NVIDIA's GPUs and Mellanox's NICs get theirs, by their names.
///
/// # Errors
///
/// [`ImportError::TooLong`], or [`ImportError::NotRecognized`] where no line begins with the
/// address of a function.
pub fn read(text: &str) -> Result<Listing, ImportError> {
    check_length(text)?;
    let mut functions = Vec::new();
    let mut record: Option<Record> = None;
    let (mut drawing, mut drawn) = (Drawing::default(), Vec::new());
    let mut skipped_lines = 0;
    for line in text.lines() {
        if functions.len() + drawn.len() >= MOST_FUNCTIONS {
            skipped_lines += 1;
        } else if drawing.line(line, &mut drawn) {
            functions.extend(record.take().map(Record::finish));
        } else if let Some((bdf, rest)) = headline(line) {
            functions.extend(record.replace(Record::new(bdf, rest)).map(Record::finish));
        } else if let Some(record) = &mut record {
            skipped_lines += usize::from(!record.line(line));
        } else {
            skipped_lines += usize::from(!line.trim().is_empty());
        }
    }
    functions.extend(record.map(Record::finish));
    add(&mut functions, drawn);
    functions.truncate(MOST_FUNCTIONS);
    if functions.is_empty() {
        return Err(ImportError::NotRecognized {
            expected: "listing of PCI functions",
            found: "no line begins with an address such as 3b:00.0",
            command: "lspci -D -nn -vvv",
        });
    }
    // lspci leaves out the node where Linux says -1. Only a listing that names a node for some
    // function says so by its silence about another.
    if functions
        .iter()
        .any(|function: &Function| function.numa.is_present())
    {
        for function in &mut functions {
            if function.numa == Datum::NotCollected {
                function.numa = Datum::Missing;
            }
        }
    }
    Ok(Listing {
        functions,
        skipped_lines,
    })
}

/// Adds what a drawing shows to what lists say.
fn add(functions: &mut Vec<Function>, drawn: Vec<Function>) {
    let mut known: BTreeMap<Bdf, usize> = (functions.iter().enumerate())
        .map(|(at, function)| (function.bdf, at))
        .collect();
    for function in drawn {
        match known.get(&function.bdf).copied() {
            Some(at) => {
                let listed = &mut functions[at];
                listed.bridge = listed.bridge.or(function.bridge);
                listed.identity = std::mem::take(&mut listed.identity).or(function.identity);
            }
            None => {
                known.insert(function.bdf, functions.len());
                functions.push(function);
            }
        }
    }
}

/// `3b:00.0 3D controller: ...`: the address stands at the very beginning of its line, with `-PP`
/// after those of the bridges above it.
fn headline(line: &str) -> Option<(Bdf, &str)> {
    let (address, rest) = line.split_once(' ')?;
    let address = match address.rsplit_once('/') {
        // `-P` leaves the bus out, and with it what tells functions apart.
        Some((_, last)) if last.contains(':') => last,
        _ => address,
    };
    Some((address.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
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
    fn words_say_as_much_as_bytes() {
        let gpu = only(GPU);
        assert!(gpu.identity.is_nvidia_gpu());
        assert_eq!(gpu.identity.device.unwrap().to_string(), "2330");
        assert_eq!(gpu.numa.present().unwrap().0, 1);
        assert_eq!(gpu.iommu_group, Datum::Present(44));
        assert_eq!(gpu.driver, Datum::Present("nvidia".to_owned()));
        let express = gpu.express.present().unwrap();
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
        assert_eq!(gpu.link.present().unwrap().to_string(), "2.5 GT/s x8");
        assert_eq!(
            gpu.link_capable.present().unwrap().to_string(),
            "32 GT/s x16"
        );
        let bars = gpu.bars.present().unwrap();
        assert_eq!(
            (bars[1].number, bars[1].kind, bars[1].size),
            (2, BarKind::Prefetchable, 128 << 30)
        );
        assert!(gpu.ats.present().unwrap().enabled);
        assert_eq!(gpu.acs, Datum::Missing);
        let aer = gpu.aer.present().unwrap();
        assert_eq!(
            (aer.uncorrectable.bits(), aer.correctable.bits()),
            (1 << 14, 1 | 1 << 13)
        );
        let rebar = gpu.resizable_bars.present().unwrap();
        assert_eq!((rebar[0].bar, rebar[0].largest()), (2, Some(128 << 30)));
        assert_eq!(
            gpu.sriov
                .present()
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
        let acs = port.acs.present().unwrap();
        assert_eq!(acs.redirecting(), AcsBits::REQUEST_REDIRECT);
        assert_eq!(acs.at.unwrap().0, 0x2a0);
        assert_eq!(port.numa, Datum::NotCollected);
    }

    #[test]
    fn what_a_user_may_not_see_is_not_missing() {
        let denied =
            only("3b:00.0 0302: 10de:2330\n\tStatus: Cap+\n\tCapabilities: <access denied>\n");
        assert!(denied.identity.is_nvidia_gpu());
        assert_eq!((denied.express, denied.acs), (Datum::Denied, Datum::Denied));
        let short = only("3b:00.0 3D controller: NVIDIA Corporation Device 2330\n");
        assert_eq!(short.acs, Datum::NotCollected);
        let none = only("00:00.0 Host bridge: Intel Corporation Device 1\n\tStatus: Cap- 66MHz-\n");
        assert_eq!(none.acs, Datum::Missing);
    }

    #[test]
    fn bytes_win_over_words() {
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
        assert_eq!(nic.acs, Datum::NotCollected);
    }

    #[test]
    fn a_listing_without_end_is_read_up_to_a_bound() {
        let text = "1:00.0 Host bridge: X\n".repeat(2 * MOST_FUNCTIONS);
        let listing = read(&text).unwrap();
        assert_eq!(listing.functions.len(), MOST_FUNCTIONS);
        assert!(listing.skipped_lines >= MOST_FUNCTIONS - 1);
    }

    #[test]
    fn garbage_is_counted_and_nothing_at_all_is_an_error() {
        let listing =
            read("$ lspci\n\n00:00.0 Host bridge: X\nnot indented\n\t\tLnkSta:\n").unwrap();
        assert_eq!((listing.functions.len(), listing.skipped_lines), (1, 2));
        let error = read("hello\n").unwrap_err().to_string();
        assert!(error.contains("lspci -D -nn -vvv"), "{error}");
    }
}
