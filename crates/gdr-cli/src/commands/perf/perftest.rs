//! Options of perftest: the ones that `gdr perf` accepts by their names, and hints for the others.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use gdr_perf::transfer::MinimumRate;

/// Options of perftest for which gdr has no other name.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "As in perftest")]
pub(super) struct PerftestOptions {
    /// Register GPU memory with a kernel device by dma-buf, or fail
    #[arg(long = "use_cuda_dmabuf")]
    pub(super) dma_buf: bool,

    /// Measure forever, printing the rates of all sizes every --duration seconds [default: 5]
    #[arg(long = "run_infinitely", conflicts_with = "iters")]
    pub(super) endless: bool,

    /// Limit the READs and atomics in flight; the smaller of this and --tx-depth applies
    #[arg(short, long, value_name = "N", value_parser = crate::units::count)]
    pub(super) outs: Option<u32>,

    /// Acknowledgement timeout as an exponent: 4.096 us * 2^N, with 7 retries [default: derived from
    /// --timeout]
    #[arg(short = 'u', long, value_name = "N")]
    pub(super) qp_timeout: Option<u8>,

    /// Service level (kernel devices only)
    #[arg(short = 'S', long = "sl", value_name = "N", default_value_t = 0)]
    pub(super) service_level: u8,

    /// Traffic class, which sets the packets' DSCP and ECN bits (kernel devices only)
    #[arg(
        short = 'T',
        long = "tos",
        visible_alias = "tclass",
        value_name = "N",
        default_value_t = 0
    )]
    pub(super) traffic_class: u8,

    /// Like --min, but in MiB/s, or in Gb/s with --report_gbits
    #[arg(short = 'w', long = "limit_bw", value_name = "RATE", value_parser = positive, conflicts_with = "min")]
    limit_bw: Option<f64>,

    /// Fail if a size has a lower message rate than this, in millions per second
    #[arg(short = 'y', long = "limit_msgrate", value_name = "RATE", value_parser = positive)]
    pub(super) limit_msgrate: Option<f64>,

    /// Read --limit_bw in Gb/s (both units are always shown)
    #[arg(long = "report_gbits")]
    report_gbits: bool,

    /// Show CPU time and all other columns, as with --wide
    #[arg(long = "cpu_util", conflicts_with_all = ["csv", "json"])]
    pub(super) cpu_util: bool,

    /// Let the kernel choose the CPUs, as with --cpus any
    #[arg(long = "disable_numa", conflicts_with = "cpus")]
    pub(super) disable_numa: bool,

    /// Also write the JSON document to perftest_out.json
    #[arg(long = "out_json")]
    out_json: bool,

    /// Also write the JSON document to this file
    #[arg(long = "out_json_file", value_name = "FILE")]
    out_json_file: Option<std::path::PathBuf>,

    /// Connection type; only RC is supported
    #[arg(short = 'c', long, value_name = "TYPE", value_parser = connection, default_value = "RC")]
    _connection: Reliable,

    /// Kind of GPU memory; only 0 is supported (see --memory)
    #[arg(long = "cuda_mem_type", value_name = "N", value_parser = cuda_memory, conflicts_with = "memory")]
    _cuda_mem_type: Option<Reliable>,

    /// Accepted and ignored: gdr never warns about CPU frequencies
    #[arg(short = 'F', long = "CPU-freq")]
    _cpu_freq: bool,

    /// Accepted and ignored: gdr never computes a peak
    #[arg(short = 'N', long = "noPeak")]
    _no_peak: bool,

    /// Accepted and ignored: gdr always warms up (see --warm-up)
    #[arg(long = "perform_warm_up")]
    _perform_warm_up: bool,

    /// Accepted and ignored: gdr never registers memory with relaxed ordering
    #[arg(long = "disable_pcie_relaxed")]
    _disable_pcie_relaxed: bool,
}

/// The only supported value of an option: every queue pair is reliable.
#[derive(Clone, Copy, Debug)]
struct Reliable;

fn connection(text: &str) -> Result<Reliable, String> {
    match text.to_ascii_uppercase().as_str() {
        "RC" => Ok(Reliable),
        "UC" | "UD" | "XRC" | "DC" | "SRD" => Err(format!(
            "gdr perf measures only reliable connections; use perftest with `gdr run -- ib_send_bw -c \
             {text}` (soft devices support UD)"
        )),
        _ => Err("use RC".to_owned()),
    }
}

fn cuda_memory(text: &str) -> Result<Reliable, String> {
    match text {
        "0" => Ok(Reliable),
        "1" => Err(
            "managed memory moves between host and GPU, so no device registers it as GPU memory"
                .to_owned(),
        ),
        "4" => Err("memory from malloc is host memory: leave out the GPU".to_owned()),
        _ => Err("use 0, or choose the allocator with --memory".to_owned()),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err("use a number greater than 0".to_owned()),
    }
}

impl PerftestOptions {
    /// Returns the lowest rate of `--limit_bw`.
    pub(super) fn minimum_rate(&self) -> Option<MinimumRate> {
        let unit = match self.report_gbits {
            true => 0.125,
            false => 1_048_576.0 / 1e9,
        };
        self.limit_bw.map(|rate| MinimumRate {
            gb_per_s: rate * unit,
        })
    }

    /// Returns the file of `--out_json` and `--out_json_file`.
    pub(super) fn document(&self) -> Option<&std::path::Path> {
        const USUAL: &str = "perftest_out.json";
        let usual = self.out_json.then(|| USUAL.as_ref());
        self.out_json_file.as_deref().or(usual)
    }
}

const RAW: &str = "it belongs to perftest's raw Ethernet programs, which `gdr run` gives queue pairs for raw \
                   packets without a NIC";
const RATE_LIMIT: &str = "gdr perf sends as fast as it can, without a rate limit";
const MEMORY: &str = "each end uses host memory or, with --gpu, the memory of an NVIDIA GPU";
const CRYPTO: &str =
    "gdr perf sends the bytes as they are, without encryption or signatures by the NIC";
const CM: &str =
    "the ends find each other over TCP at --port, and connect the queue pairs themselves";
const MULTICAST: &str =
    "gdr perf has one peer: use perftest's ib_send_bw to send to a multicast group through a NIC";
const DC: &str = "gdr perf measures reliable connections, which have no DC streams";
const TPH: &str = "gdr perf registers memory without TLP processing hints";
const POLLING: &str = "gdr perf always polls, and takes all available completions at once";
const QUANTILES: &str =
    "--wide shows quantiles up to p99.99, and --json has every latency in a histogram";

/// Options of perftest 4.5 up to its version of July 2026, with the short name first, and what to use instead of each.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "e events, X vector, cqe_poll, disable_dynamic_polling",
        POLLING,
    ),
    ("g mcg, M MGID, connectionless", MULTICAST),
    ("z comm_rdma_cm, R rdma_cm, retry_count, tcp", CM),
    (
        "dont_xchg_versions",
        "ends of different versions refuse each other",
    ),
    (
        "L hop_limit",
        "packets have 64 hops; on soft devices the kernel sets the number",
    ),
    ("C report-cycles", "times are in microseconds"),
    ("H report-histogrm, report-histogram", QUANTILES),
    (
        "U report-unsorted",
        "--json has all latencies as a histogram, not in their order",
    ),
    (
        "O dualport, report-per-port",
        "each run uses one port: start one run per port, with -i",
    ),
    (
        "f margin",
        "--duration starts after the warm-up, and all of it is measured",
    ),
    (
        "W report-counters",
        "read the counters in /sys/class/infiniband/DEV/ports/N before and after the run",
    ),
    (
        "B source_mac, E dest_mac, J dest_ip, j source_ip, K dest_port, k source_port, Y \
         ethertype, Z server, P client, mac_fwd, G use_rss, remote_mac, local_mac, remote_ip, \
         local_ip, remote_port, local_port, raw_ipv6, raw_mcast, promiscuous, sniffer, flows, \
         flows_burst, reply_every, vlan_en, vlan_pcp",
        RAW,
    ),
    (
        "force-link",
        "the link layer follows from the port, which -d and -i choose",
    ),
    (
        "use-srq",
        "every queue pair has its own receive queue, with --rx-depth receives",
    ),
    (
        "recv_post_list",
        "receives are posted again as they complete",
    ),
    (
        "no_lock",
        "the cost of an uncontended lock is too small to measure",
    ),
    (
        "use-null-mr",
        "gdr perf compares bytes, and a null region stores none",
    ),
    (
        "report-both",
        "with -b the rates count both directions together",
    ),
    (
        "reversed",
        "start the server where the bytes should arrive, or measure read-bw",
    ),
    ("pkey_index", "queue pairs use the partition key at index 0"),
    ("inline_recv", "receives are in registered memory"),
    (
        "burst_size, typical_pkt_size, rate_limit, rate_limit_type, rate_units, latency_gap",
        RATE_LIMIT,
    ),
    (
        "output",
        "--csv prints figures only, and --json names each of them",
    ),
    (
        "flow_label",
        "kernel devices send packets with flow label 0; soft devices vary the source port instead",
    ),
    (
        "payload_file_path",
        "--verify uses a different pattern for each size, queue pair and message",
    ),
    (
        "use_cuda_pcie_mapping",
        "gdr sets the dma-buf flag if the GPU needs it: see dmabuf.force_pcie in `gdr doctor`",
    ),
    (
        "use_data_direct",
        "gdr perf registers through the NIC itself, not through its Data Direct function",
    ),
    (
        "gpu_touch",
        "--verify compares by a kernel on the GPU, before slots are used again",
    ),
    (
        "use_musa, use_musa_bus_id, use_musa_dmabuf, use_musa_pcie_mapping, use_rocm, \
         use_rocm_dmabuf, use_neuron, use_neuron_dmabuf, use_hl, use_mlu, use_mlu_dmabuf, \
         use_opencl, opencl_platform_id, use_ib_dm_dmabuf, mmap, mmap-offset",
        MEMORY,
    ),
    ("odp", "memory is pinned while it is registered"),
    (
        "use_hugepages",
        "gdr does not request huge pages; the kernel decides about transparent huge pages",
    ),
    (
        "mr_per_qp",
        "all queue pairs use one region for each direction",
    ),
    (
        "ipv6",
        "choose the GID with -x, or pass an IPv6 address as HOST to use the device that routes there",
    ),
    (
        "ipv6-addr",
        "give an IPv6 address as HOST, and as --bind of the server",
    ),
    (
        "use_old_post_send",
        "gdr uses the extended post-send interface if the device has it",
    ),
    ("dlid", "the LID comes from the peer"),
    (
        "wait_destroy",
        "the ends tell each other when they are done",
    ),
    (
        "aes_xts, encrypt_on_tx, sig_before, aes_block_size, kek_path, credentials_path, \
         data_enc_keys_number, data_enc_key_app_path, sig_offload",
        CRYPTO,
    ),
    ("log_dci_streams, log_active_dci_streams", DC),
    (
        "use_ooo, no_enhanced_reorder",
        "queue pairs keep the order of their packets",
    ),
    (
        "congest_type",
        "the NIC's settings determine congestion control",
    ),
    (
        "write_with_imm",
        "write-lat to GPU memory uses immediate data; write-bw does not",
    ),
    ("send_with_imm", "gdr perf sends without immediate data"),
    (
        "unsolicited_write",
        "gdr perf uses WRITEs that do not complete at the receiver",
    ),
    ("tph_mem, cpu_id, ph", TPH),
    (
        "data_validation_debug",
        "--verify names the first wrong byte, and what was expected there",
    ),
    (
        "numa_node",
        "pass the node's CPUs (see `lscpu`) to --cpus; by default gdr uses those nearest to the NIC",
    ),
];

/// Returns short name (or nothing), long name, and what to use instead.
fn elsewhere() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    ELSEWHERE.iter().flat_map(|(options, words)| {
        options.split(", ").map(|option| {
            let (short, long) = option.split_once(' ').unwrap_or(("", option));
            (short, long, *words)
        })
    })
}

/// Returns the hint for an argument that clap reports as unknown in `error`, if it is an option of perftest.
pub(crate) fn instead(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let name = given.split('=').next()?;
    let is_given = |short: &str, long: &str| match (name.strip_prefix("--"), name.strip_prefix('-'))
    {
        (Some(name), _) => name == long,
        (None, Some(name)) => !short.is_empty() && name.starts_with(short),
        (None, None) => false,
    };
    let (_, _, words) = elsewhere().find(|(short, long, _)| is_given(short, long))?;
    Some(format!("{name} of perftest: {words}"))
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::cli;

    /// Options of perftest 4.5-0.17 and 26.07, letters before names.
    const PERFTEST: &str = include_str!("perftest-options.txt");

    fn perf() -> clap::Command {
        let mut gdr = cli::command();
        gdr.build();
        gdr.find_subcommand("perf").unwrap().clone()
    }

    #[test]
    fn every_option_of_perftest_is_taken_by_its_name_or_answered() {
        let perf = perf();
        let taken = |long: &str| {
            perf.get_arguments().find(|argument| {
                let aliases = argument.get_all_aliases().unwrap_or_default();
                argument.get_long() == Some(long) || aliases.contains(&long)
            })
        };
        let mut named = Vec::new();
        for line in PERFTEST.lines().filter(|line| !line.starts_with('#')) {
            let (short, long) = line.split_once(' ').unwrap_or(("", line));
            let answered = elsewhere().find(|(_, name, _)| *name == long);
            match (taken(long), answered) {
                // The same letter has the same meaning.
                (Some(argument), None) if !short.is_empty() => {
                    assert_eq!(argument.get_short(), short.chars().next(), "{long}");
                }
                (Some(_), None) => {}
                (Some(_), Some(_)) => panic!("--{long} is taken and answered"),
                (None, Some((letter, _, _))) => {
                    // `-v` is an option of every command.
                    assert!(short == "v" || short == letter, "{long}");
                }
                (None, None) => panic!("--{long} is neither taken nor answered"),
            }
            named.push(long);
        }
        for (_, long, words) in elsewhere() {
            assert!(named.contains(&long), "perftest has no --{long}");
            assert!(!words.ends_with('.') && words.len() > 20, "{words}");
        }
    }

    #[test]
    fn an_option_that_is_not_taken_says_what_helps_instead() {
        let refused = |line: &str| {
            let line = format!("gdr perf write-bw {line}");
            let parsed = cli::command().try_get_matches_from(line.split_whitespace());
            instead(&parsed.unwrap_err())
        };
        for (line, words) in [
            ("--odp host", "memory is pinned"),
            ("-R", "over TCP at --port"),
            ("-e -a", "polls"),
            ("--rate_limit=5", "without a rate limit"),
            (
                "--data_validation_debug",
                "--verify names the first wrong byte",
            ),
        ] {
            let said = refused(line).unwrap();
            assert_contains!(said, words);
        }
        assert_eq!(refused("--nonsense"), None);
        assert_eq!(refused("-c RD"), None);
    }
}
