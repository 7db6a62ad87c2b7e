//! The other process of a run over RDMA: its addresses, and which peers are accepted.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use gdr_cuda::Gpu;
use gdr_node::{Inventory, Source};
use gdr_perf::loopback::{
    Chosen, DeviceName, DevicePair, HostPort, InvalidDeviceName, NicDistance, ProviderPreference,
};
use gdr_rdma::{Device, Listener, Provider as ChosenProvider, Security, SharedKey, SoftOptions};

use crate::exit::UsageError;
use crate::global::Global;
use crate::gpu_context::WithoutGpu;

/// UDP port of RoCEv2.
pub(crate) const ROCE_PORT: u16 = 4791;

/// Parses how many shards a soft device has.
pub(crate) fn shards() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(1..=SoftOptions::MAX_SHARDS as i64)
}

/// Options that choose which peers to accept.
#[derive(Debug, clap::Args)]
pub(crate) struct SecurityOptions {
    /// File (mode 600) with a key of at least 16 bytes that both ends share; required unless both use
    /// loopback addresses
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    key_file: Option<PathBuf>,

    /// Accept any peer without a key; only for isolated networks
    #[arg(long)]
    insecure: bool,
}

impl SecurityOptions {
    /// Returns whether any of them is given.
    pub(crate) fn is_given(&self) -> bool {
        self.key_file.is_some() || self.insecure
    }

    /// Returns which peers they accept, in a word for documents.
    pub(crate) fn peers(&self) -> &'static str {
        match (&self.key_file, self.insecure) {
            (Some(_), _) => "key",
            (None, true) => "any",
            (None, false) => "loopback",
        }
    }

    /// Returns which peers they accept.
    pub(crate) fn security(&self) -> Result<Security> {
        match &self.key_file {
            Some(path) => Ok(Security::Key(SharedKey::read(path)?)),
            None if self.insecure => Ok(Security::Insecure),
            None => Ok(Security::Loopback),
        }
    }
}

/// The provider.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Provider {
    /// verbs if a kernel device is usable, else soft
    Auto,
    /// RoCEv2 in user space over UDP, without RDMA hardware
    Soft,
    /// Kernel devices, through libibverbs
    Verbs,
}

impl From<Provider> for ProviderPreference {
    fn from(provider: Provider) -> Self {
        match provider {
            Provider::Auto => Self::Auto,
            Provider::Soft => Self::Soft,
            Provider::Verbs => Self::Verbs,
        }
    }
}

/// Returns the name of a device on the command line.
pub(crate) fn device_name(text: &str) -> Result<DeviceName, String> {
    text.parse()
        .map_err(|error: InvalidDeviceName| format!("{error}; `gdr devices` lists them"))
}

/// Returns whether to simulate a GPU on a machine without one. A named kernel device is real hardware, about which a
/// simulated GPU proves nothing.
pub(crate) fn without_gpu(provider: Provider, devices: [&Option<DeviceName>; 2]) -> WithoutGpu {
    let is_real = matches!(provider, Provider::Verbs)
        || devices
            .into_iter()
            .flatten()
            .any(|device| matches!(device, DeviceName::Verbs(_)));
    match is_real {
        true => WithoutGpu::Fails,
        false => WithoutGpu::Simulates,
    }
}

/// Returns the chosen provider and the reason in words. On a machine with neither an RDMA device nor a card that lacks
/// its driver, there is nothing to load, so the full reason is only shown with `-v`.
pub(crate) fn provider_in_words(chosen: &Chosen, global: &Global) -> String {
    let Chosen { provider, why, .. } = chosen;
    // Neither an option nor the state of a device is the reason.
    let is_for_want = *provider == ChosenProvider::Soft && why.contains("libibverbs");
    match is_for_want && global.verbose == 0 && !has_rdma_hardware() {
        true => format!("{provider}: this machine has no RDMA device"),
        false => format!("{provider}: {why}"),
    }
}

/// Returns whether the kernel has an RDMA device, or a card that could become one.
fn has_rdma_hardware() -> bool {
    const MELLANOX: &str = "0x15b3";
    let entries = |folder| fs::read_dir(folder).into_iter().flatten().flatten();
    let is_card = |function: fs::DirEntry| {
        let vendor = fs::read_to_string(function.path().join("vendor"));
        vendor.is_ok_and(|vendor| vendor.trim() == MELLANOX)
    };
    entries("/sys/class/infiniband").next().is_some()
        || entries("/sys/bus/pci/devices").any(is_card)
}

/// Returns the kernel RDMA devices by their distance to `gpu`, nearest first; empty if the topology is unknown.
pub(crate) fn nearest_nics(gpu: &Gpu, node: &dyn Source) -> Vec<NicDistance> {
    let inventory = Inventory::read(node);
    let Ok(topology) = inventory.topology() else {
        return Vec::new();
    };
    let mut found: Vec<_> = inventory
        .rdma_functions()
        .filter_map(|(device, function)| {
            let relation = topology.relation(gpu.info().bdf, function).ok()?;
            Some((relation.smi, device.name.clone()))
        })
        .collect();
    found.sort();
    found
        .into_iter()
        .map(|(class, device)| NicDistance {
            device,
            distance: class.to_string(),
        })
        .collect()
}

/// Returns where a server listens if no option says so: at the address of a named soft device; otherwise at loopback,
/// or everywhere if peers from other hosts can be accepted.
pub(crate) fn listening_address(
    pair: &DevicePair,
    security: &SecurityOptions,
    port: u16,
) -> HostPort {
    let address = match &pair.to {
        Some(DeviceName::Soft(address)) => *address,
        _ if security.is_given() => Ipv4Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::LOCALHOST.into(),
    };
    SocketAddr::new(address, port).into()
}

/// The end of a connection setup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// It listens.
    Listens,
    /// It connects.
    Connects,
}

/// TCP addresses of the connection setup, and which peers to accept.
pub(crate) struct Addresses {
    all: Vec<SocketAddr>,
    pub(crate) security: Security,
}

impl Addresses {
    /// Resolves the addresses of a run in two processes. Fails if no peer could be accepted there.
    pub(crate) fn resolve(
        host: &HostPort,
        side: Side,
        security: Security,
        limit: Duration,
    ) -> Result<Self> {
        let all = host.resolve(limit)?;
        let far = |address: &&SocketAddr| {
            let ip = address.ip().to_canonical();
            !ip.is_loopback() && (side == Side::Connects || !ip.is_unspecified())
        };
        if let (Security::Loopback, Some(address)) = (&security, all.iter().find(far)) {
            return Err(UsageError(format!(
                "{} is not a loopback address, so both ends need a shared key: pass --key-file FILE \
                 on both, or --insecure on an isolated network",
                address.ip()
            ))
            .into());
        }
        Ok(Self { all, security })
    }

    /// Opens the server's device, which `option` names, and listens at the first usable address.
    pub(crate) fn listen(
        &self,
        pair: &DevicePair,
        chosen: &Chosen,
        option: &str,
    ) -> Result<(Device, Listener)> {
        self.first(|address| {
            let is_soft = chosen.provider == ChosenProvider::Soft;
            if address.ip().is_unspecified() && is_soft && pair.to.is_none() {
                return Err(UsageError(format!(
                    "a soft device has only one address, but the server would listen at all of them: choose the \
                     address with --bind, or the device with {option}"
                ))
                .into());
            }
            let device = pair.listener(chosen, address.ip())?;
            let listener = Listener::bind(address)?;
            check_listener(&device, address, &self.security)?;
            Ok((device, listener))
        })
    }

    /// Calls `attempt` for each address until one is usable.
    pub(crate) fn first<T>(&self, mut attempt: impl FnMut(SocketAddr) -> Result<T>) -> Result<T> {
        let mut refusal = None;
        for address in &self.all {
            match attempt(*address) {
                Err(error) if is_of_address(&error) => {
                    refusal.get_or_insert(error);
                }
                outcome => return outcome,
            }
        }
        Err(refusal.unwrap_or_else(|| anyhow::anyhow!("the host has no address")))
    }
}

/// Returns whether another address of the same host may work.
fn is_of_address(error: &anyhow::Error) -> bool {
    use gdr_rdma::{Awaited, Error, HandshakeStep, NicError, SocketError};
    let of_object = || match error.downcast_ref::<gdr_object::Error>() {
        Some(gdr_object::Error::Rdma(error)) => Some(error),
        _ => error.downcast_ref::<Error>(),
    };
    let error = match error.downcast_ref::<gdr_perf::Error>() {
        Some(gdr_perf::Error::Rdma(error)) => Some(error),
        _ => of_object(),
    };
    matches!(
        error,
        Some(
            Error::Connect { .. }
                | Error::Nic(NicError::Socket(SocketError::NoRoute { .. }))
                | Error::Nic(NicError::Socket(SocketError::AddressNotLocal { .. }))
                | Error::Nic(NicError::Socket(SocketError::AddressFamily { .. }))
                | Error::Deadline(Awaited::Handshake(HandshakeStep::Connect))
        )
    )
}

/// Refuses a device that no peer would accept: without a key, a device at an address other than TCP's.
pub(crate) fn check_listener(
    device: &Device,
    address: SocketAddr,
    security: &Security,
) -> Result<()> {
    let (rdma, tcp) = (device.address().ip(), address.ip().to_canonical());
    let keyed = matches!(security, Security::Key(_));
    // On InfiniBand, the device is not reached by an IP address.
    if keyed || tcp.is_unspecified() || rdma == tcp || device.lid().is_some() {
        return Ok(());
    }
    Err(UsageError(format!(
        "{} is at {rdma}, but without a shared key a peer that connects to {tcp} accepts RDMA \
         only from {tcp}: pass --key-file FILE on both sides, or listen at {rdma}",
        device.name()
    ))
    .into())
}
