//! Owners of objects: their addresses, and how a command connects to them.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use gdr_object::{
    Deadline, Element, Epoch, Error, Link, LinkOptions, ObjectInfo, ObjectName, RemoteObject, Shape,
};
use gdr_perf::loopback::{Chosen, DeviceName, DevicePair, HostPort, NicDistance};

use crate::object_spec::parse_shape;
use crate::rdma_peer::{Addresses, Provider, SecurityOptions, Side, device_name};
use crate::units::count;

/// Options that choose a command's RDMA device, and the peers that it accepts.
#[derive(Debug, clap::Args)]
pub(crate) struct DeviceOptions {
    /// Device to use: a kernel device (mlx5_0), or an interface or address of this machine, at which
    /// gdr itself speaks RoCEv2 over UDP [default: an active kernel device, else the address that
    /// routes to the other host]
    #[arg(long, value_name = "DEV", value_parser = device_name)]
    device: Option<DeviceName>,

    /// RDMA provider
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Provider::Auto)]
    provider: Provider,

    /// UDP port of a soft device; 0 picks a free one. Kernel devices reach port 4791 only
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    udp_port: u16,

    #[command(flatten)]
    pub(crate) security: SecurityOptions,
}

impl DeviceOptions {
    /// Sets what the device's library reads from the environment: before any thread is started.
    pub(crate) fn prepare(&self) {
        if !matches!(self.provider, Provider::Soft) {
            gdr_rdma::disable_scatter_to_cqe();
        }
    }

    /// Returns what to choose a device from, and the choice; `nearest` are the kernel devices near a GPU.
    pub(crate) fn choose(&self, nearest: Vec<NicDistance>) -> Result<(DevicePair, Chosen)> {
        let pair = DevicePair {
            from: self.device.clone(),
            to: self.device.clone(),
            port: self.udp_port,
            shards: None,
            preference: self.provider.into(),
            nearest,
            gid_index: None,
        };
        let pair = pair.settle()?;
        let chosen = pair.choose()?;
        Ok((pair, chosen))
    }

    /// Connects to an owner.
    pub(crate) fn connect(&self, owner: &HostPort, limit: Duration) -> Result<Link> {
        let (pair, chosen) = self.choose(Vec::new())?;
        let security = self.security.security()?;
        let addresses = Addresses::resolve(owner, Side::Connects, security, limit)?;
        addresses.first(|address| {
            let device = pair.connector(&chosen, address.ip())?;
            let options = LinkOptions::new(addresses.security.clone()).device(&device);
            Ok(Link::connect(address, options, Deadline::after(limit))?)
        })
    }
}

/// Options of the commands that connect to an owner.
#[derive(Debug, clap::Args)]
pub(crate) struct LinkArguments {
    /// Seconds that each step may take, plus one for every 64 MiB
    #[arg(long, value_name = "SECONDS", value_parser = count, default_value = "10")]
    timeout: u32,

    #[command(flatten)]
    device: DeviceOptions,
}

impl LinkArguments {
    /// Like [`DeviceOptions::prepare`].
    pub(crate) fn prepare(&self) {
        self.device.prepare();
    }

    /// Connects to the owner.
    pub(crate) fn connect(&self, owner: &HostPort) -> Result<Link> {
        let limit = Duration::from_secs(self.timeout.into());
        self.device.connect(owner, limit)
    }

    /// Returns the deadline of a step that moves `bytes`.
    pub(crate) fn deadline(&self, bytes: u64) -> Deadline {
        let seconds = u64::from(self.timeout).saturating_add(bytes >> 26);
        Deadline::after(Duration::from_secs(seconds))
    }
}

/// Waits for epochs of an object, until a signal comes.
pub(crate) struct EpochWait<'a> {
    pub(crate) object: &'a RemoteObject,
    pub(crate) link: &'a LinkArguments,
    /// Seconds without an epoch after which a wait fails.
    pub(crate) idle: Option<u32>,
    pub(crate) stop: &'a AtomicBool,
}

impl EpochWait<'_> {
    /// Waits for an epoch newer than `last`; returns `None` after a signal.
    pub(crate) fn newer(&self, last: Option<Epoch>) -> Result<Option<Epoch>> {
        /// How often to check for a signal.
        const LOOK: Duration = Duration::from_millis(200);
        let idle = self.idle;
        let idle = idle.map(|it| Deadline::after(Duration::from_secs(it.into())));
        let mut answer = self.link.deadline(0);
        while !self.stop.load(Ordering::Relaxed) {
            match self.object.wait_newer(last, Deadline::after(LOOK)) {
                Err(error @ Error::NothingNewer { .. }) => {
                    if idle.is_some_and(Deadline::has_passed) {
                        return Err(error.into());
                    }
                    answer = self.link.deadline(0);
                }
                // The owner has the whole time of a step to answer, not just a single wait's.
                Err(Error::Stalled { .. } | Error::NoAnswer { .. }) if !answer.has_passed() => {}
                found => return Ok(Some(found?)),
            }
        }
        Ok(None)
    }
}

/// An object of an owner: `HOST[:PORT]/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectAddress {
    pub(crate) owner: HostPort,
    pub(crate) name: ObjectName,
}

impl FromStr for ObjectAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (owner, name) = text.split_once('/').ok_or_else(|| {
            "the object's name is missing; use HOST/NAME or HOST:PORT/NAME, and run `gdr ls HOST` for the names"
                .to_owned()
        })?;
        Ok(Self {
            owner: owner
                .parse()
                .map_err(|error: gdr_perf::loopback::InvalidHostPort| error.to_string())?,
            name: ObjectName::new(name).map_err(|error| error.to_string())?,
        })
    }
}

impl fmt::Display for ObjectAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

/// Options that state what the object must be.
#[derive(Debug, clap::Args)]
pub(crate) struct Expectation {
    /// Fail unless the elements are of this type, such as f32 or bf16
    #[arg(long, value_name = "TYPE")]
    element: Option<Element>,

    /// Fail unless the object has this shape, such as 1024x768
    #[arg(long, value_name = "SHAPE", value_parser = parse_shape)]
    shape: Option<Shape>,
}

/// An object differs from what was expected.
#[derive(Debug, thiserror::Error)]
#[error(
    "{name} is {found_element}{found_shape}, but {expected} was expected; change --element and \
     --shape, or the object that its owner publishes"
)]
pub(crate) struct UnexpectedObject {
    name: ObjectName,
    found_element: Element,
    found_shape: Shape,
    expected: String,
}

impl Expectation {
    /// Fails unless the object is as expected.
    pub(crate) fn check(&self, info: &ObjectInfo) -> Result<(), UnexpectedObject> {
        let is_element = self.element.is_none_or(|element| element == info.element);
        let is_shape = self.shape.as_ref().is_none_or(|shape| *shape == info.shape);
        if is_element && is_shape {
            return Ok(());
        }
        let element = self.element.map(|element| element.to_string());
        let shape = self.shape.as_ref().map(ToString::to_string);
        Err(UnexpectedObject {
            name: info.name.clone(),
            found_element: info.element,
            found_shape: info.shape.clone(),
            expected: element.unwrap_or_default() + &shape.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use snapshot::assert_contains;

    use super::*;

    #[test]
    fn an_object_has_a_host_and_a_name_that_may_have_slashes() {
        for (text, owner, name) in [
            ("node1/weights", "node1:4791", "weights"),
            ("node1:7000/model/l.0:q", "node1:7000", "model/l.0:q"),
            ("[2001:db8::1]:7000/w", "[2001:db8::1]:7000", "w"),
            ("::1/w", "[::1]:4791", "w"),
        ] {
            let address: ObjectAddress = text.parse().unwrap();
            assert_eq!(address.owner.to_string(), owner);
            assert_eq!(address.name.as_str(), name);
        }
        for (text, words) in [
            ("weights", "HOST/NAME"),
            ("/weights", "is not a host"),
            ("node1/", "it is empty"),
            ("node1/a b", "another character"),
            ("fe80::1/w", "link-local"),
        ] {
            let error = text.parse::<ObjectAddress>().unwrap_err();
            assert_contains!(error, words, "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_address_survives_as_text(
            host in "[a-z][a-z0-9-]{0,9}", port: u16, name in "[a-z0-9][a-z0-9/:._-]{0,20}",
        ) {
            let text = format!("{host}:{port}/{name}");
            let address: ObjectAddress = text.parse().unwrap();
            prop_assert_eq!(address.to_string(), text);
        }

        #[test]
        fn any_text_is_an_address_or_refused(text in any::<String>()) {
            let _ = text.parse::<ObjectAddress>();
        }
    }
}
