//! Choice of RDMA devices: soft or kernel devices.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use gdr_rdma::{Device, Provider, VerbsDevice, VerbsError, VerbsOptions};

use super::device::SoftSettings;
use super::host_port::own_address;
use crate::error::{Result, SettingsError};

/// The name of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// The soft device at this address: `127.0.0.1` or `soft-127.0.0.1`.
    Soft(IpAddr),
    /// The kernel device of this name: `mlx5_0`, or with its port `mlx5_0:2`.
    Verbs(String),
}

impl FromStr for DeviceName {
    type Err = InvalidDeviceName;

    fn from_str(text: &str) -> Result<Self, InvalidDeviceName> {
        let address = text.strip_prefix("soft-").unwrap_or(text);
        match address.parse() {
            Ok(address) => Ok(Self::Soft(address)),
            Err(_) if text.is_empty() || address != text => Err(InvalidDeviceName(text.to_owned())),
            Err(_) => Ok(Self::Verbs(text.to_owned())),
        }
    }
}

/// A text that is not a valid device name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "device `{0}` does not exist: the soft provider's devices are the addresses of this machine, such \
     as 127.0.0.1"
)]
pub struct InvalidDeviceName(String);

/// The provider to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProviderPreference {
    /// Verbs if a kernel device is usable, otherwise soft.
    #[default]
    Auto,
    /// Soft devices.
    Soft,
    /// Kernel devices.
    Verbs,
}

/// Deadline of resolving a device name.
const RESOLVER: Duration = Duration::from_secs(10);

/// Distance between a kernel device and the GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicDistance {
    /// Its name.
    pub device: String,
    /// The distance in the notation of `nvidia-smi topo -m`, such as `PIX`.
    pub distance: String,
}

/// Devices that the caller names, and what to choose from if it names none.
#[derive(Clone, Debug, Default)]
pub struct DevicePair {
    /// The device that sends.
    pub from: Option<DeviceName>,
    /// The device that receives.
    pub to: Option<DeviceName>,
    /// The UDP port of soft devices.
    pub port: u16,
    /// Number of shards of each soft device, 1 to [`gdr_rdma::SoftOptions::MAX_SHARDS`]; the default of
    /// [`gdr_rdma::SoftOptions::shards`] if `None`. Kernel devices have no shards.
    pub shards: Option<usize>,
    /// The provider.
    pub preference: ProviderPreference,
    /// Kernel devices with a known distance to the GPU, nearest first. They are tried in this order if none is named.
    pub nearest: Vec<NicDistance>,
    /// GID index of kernel devices; if `None`, a routable GID is chosen.
    pub gid_index: Option<u32>,
}

/// The chosen provider.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The provider.
    pub provider: Provider,
    /// Why it was chosen.
    pub why: String,
    /// Kernel device to use if none is named, with its port.
    pub device: Option<String>,
}

impl DevicePair {
    /// Replaces names of interfaces and hosts, such as `eth0` or `localhost`, by addresses of this host. Names of
    /// kernel devices stay.
    ///
    /// # Errors
    /// [`crate::Error::Settings`] for the name of another host.
    pub fn settle(mut self) -> Result<Self> {
        for name in [&mut self.from, &mut self.to] {
            let Some(DeviceName::Verbs(text)) = name else {
                continue;
            };
            if is_of_kernel(text) {
                continue;
            }
            if let Some(address) = own_address(text, RESOLVER)? {
                *name = Some(DeviceName::Soft(address));
            }
        }
        Ok(self)
    }

    /// Chooses the provider.
    ///
    /// # Errors
    /// [`crate::Error::Settings`] where names and preference contradict each other.
    pub fn choose(&self) -> Result<Chosen> {
        let chosen = self.choose_provider()?;
        match (chosen.provider, self.gid_index) {
            (Provider::Soft, Some(index)) => Err(SettingsError::SoftGid(index).into()),
            _ => Ok(chosen),
        }
    }

    fn choose_provider(&self) -> Result<Chosen> {
        let named = [&self.from, &self.to];
        let kernels = named.iter().find_map(|name| match name {
            Some(DeviceName::Verbs(name)) => Some(name.as_str()),
            _ => None,
        });
        let soft = named.iter().find_map(|name| match name {
            Some(DeviceName::Soft(address)) => Some(*address),
            _ => None,
        });
        let chosen = |provider, why: String| {
            let unnamed = provider == Provider::Verbs && kernels.is_none();
            let device = unnamed.then(|| usable(&self.nearest).ok()).flatten();
            Ok(Chosen {
                provider,
                why,
                device: device.map(|(device, _)| device),
            })
        };
        match (self.preference, kernels, soft) {
            (_, Some(name), Some(soft)) => Err(SettingsError::MixedProviders {
                verbs: name.to_owned(),
                soft,
            }
            .into()),
            (ProviderPreference::Soft, Some(name), _) => {
                Err(SettingsError::NotSoft(name.to_owned()).into())
            }
            (ProviderPreference::Verbs, _, Some(address)) => {
                Err(SettingsError::NotVerbs(address).into())
            }
            (ProviderPreference::Soft, ..) => chosen(Provider::Soft, "requested".to_owned()),
            (ProviderPreference::Verbs, ..) => chosen(Provider::Verbs, "requested".to_owned()),
            (ProviderPreference::Auto, Some(name), _) => {
                let why = match is_of_kernel(name) {
                    true => format!("{name} is a kernel device"),
                    false => format!("{name} is not an address or an interface of this machine"),
                };
                chosen(Provider::Verbs, why)
            }
            (ProviderPreference::Auto, _, Some(address)) => {
                chosen(Provider::Soft, format!("{address} is a soft device"))
            }
            (ProviderPreference::Auto, None, None) => Ok(best(&self.nearest)),
        }
    }

    /// Returns the settings that its soft devices share.
    fn soft(&self) -> SoftSettings {
        SoftSettings {
            port: self.port,
            shards: self.shards,
        }
    }

    /// Opens the devices of both ends in this process. A single kernel device sends to itself.
    ///
    /// # Errors
    /// The errors of [`Device::verbs`] and [`open_both`](super::open_both); [`crate::Error::Settings`] for a device
    /// that does not exist.
    pub fn both(&self, chosen: &Chosen) -> Result<(Device, Device)> {
        if chosen.provider == Provider::Soft {
            return self.soft().both(soft(&self.from), soft(&self.to));
        }
        let unnamed = chosen.device.as_deref();
        let to = open_verbs(
            verbs(&self.to).or(verbs(&self.from)).or(unnamed),
            self.gid_index,
        )?;
        let from = match verbs(&self.from).or(verbs(&self.to)) {
            Some(name) => open_verbs(Some(name), self.gid_index)?,
            None => open_verbs(Some(to.name()), self.gid_index)?,
        };
        Ok((from, to))
    }

    /// Opens the device of the end that listens on `listen`.
    ///
    /// # Errors
    /// Same as [`DevicePair::both`] and [`open_listener`](super::open_listener).
    pub fn listener(&self, chosen: &Chosen, listen: IpAddr) -> Result<Device> {
        match chosen.provider {
            Provider::Soft => self.soft().listener(listen, soft(&self.to)),
            _ => open_verbs(verbs(&self.to).or(chosen.device.as_deref()), self.gid_index),
        }
    }

    /// Opens the device of the end that connects to `peer`.
    ///
    /// # Errors
    /// Same as [`DevicePair::both`] and [`open_connector`](super::open_connector).
    pub fn connector(&self, chosen: &Chosen, peer: IpAddr) -> Result<Device> {
        match chosen.provider {
            Provider::Soft => self.soft().connector(peer, soft(&self.from)),
            _ => open_verbs(
                verbs(&self.from).or(chosen.device.as_deref()),
                self.gid_index,
            ),
        }
    }
}

fn soft(name: &Option<DeviceName>) -> Option<IpAddr> {
    match name {
        Some(DeviceName::Soft(address)) => Some(*address),
        _ => None,
    }
}

fn verbs(name: &Option<DeviceName>) -> Option<&str> {
    match name {
        Some(DeviceName::Verbs(name)) => Some(name),
        _ => None,
    }
}

/// Returns whether `name`, with or without a port, is a kernel device.
fn is_of_kernel(name: &str) -> bool {
    let device = name.split(':').next().unwrap_or(name);
    let listed = Device::list_verbs(&VerbsOptions::new());
    listed.is_ok_and(|devices| devices.iter().any(|it| it.name == device))
}

/// Chooses verbs if a kernel device is usable, otherwise soft.
fn best(near: &[NicDistance]) -> Chosen {
    match usable(near) {
        Ok((device, why)) => Chosen {
            provider: Provider::Verbs,
            why,
            device: Some(device),
        },
        Err(why) => Chosen {
            provider: Provider::Soft,
            why,
            device: None,
        },
    }
}

/// Returns the usable kernel device nearest to the GPU, with its port, and the reason for choosing it; or why no device
/// is usable.
fn usable(near: &[NicDistance]) -> Result<(String, String), String> {
    let devices = Device::list_verbs(&VerbsOptions::new()).map_err(|error| error.to_string())?;
    usable_of(devices, near)
}

fn usable_of(
    mut devices: Vec<VerbsDevice>,
    near: &[NicDistance],
) -> Result<(String, String), String> {
    let place = |name: &str| near.iter().position(|near| near.device == name);
    // Devices without a known distance come last. The sort is stable.
    devices.sort_by_key(|device| place(&device.name).unwrap_or(usize::MAX));
    let mut refusals = Vec::new();
    for device in &devices {
        let name = &device.name;
        let attributes = match &device.attributes {
            Ok(attributes) => attributes,
            Err(why) => {
                refusals.push(format!("{name}: {why}"));
                continue;
            }
        };
        for port in &attributes.ports {
            let number = port.number;
            match (&port.chosen, port.active) {
                (Ok(_), true) => {
                    let mut why =
                        format!("{name} port {number} is active and has a GID that routes");
                    if let Some(near) = place(name).and_then(|place| near.get(place)) {
                        why += &format!("; of these it is nearest to the GPU ({})", near.distance);
                    }
                    return Ok((format!("{name}:{number}"), why));
                }
                (Err(why), true) => refusals.push(format!("{name} port {number}: {why}")),
                (_, false) => {
                    refusals.push(format!("{name} port {number} is {}", port.state));
                }
            }
        }
    }
    Err(format!(
        "no kernel RDMA device can be used: {}",
        refusals.join("; ")
    ))
}

fn open_verbs(name: Option<&str>, gid_index: Option<u32>) -> Result<Device> {
    let mut options = VerbsOptions::new();
    if let Some(name) = name {
        options = options.device(name);
    }
    if let Some(index) = gid_index {
        options = options.gid_index(index);
    }
    Device::verbs(&options).map_err(|error| match (&error, name) {
        (
            gdr_rdma::Error::Verbs(VerbsError::Load(_) | VerbsError::NoSuchDevice { .. }),
            Some(name),
        ) => SettingsError::NoSuchDevice {
            name: name.to_owned(),
            source: Box::new(error),
        }
        .into(),
        _ => error.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(preference: ProviderPreference, from: Option<&str>, to: Option<&str>) -> DevicePair {
        DevicePair {
            from: from.map(|name| name.parse().unwrap()),
            to: to.map(|name| name.parse().unwrap()),
            port: 0,
            shards: None,
            preference,
            nearest: Vec::new(),
            gid_index: None,
        }
    }

    #[test]
    fn interfaces_and_host_names_are_addresses_of_this_host() {
        let settled = ends(ProviderPreference::Auto, Some("lo"), Some("localhost")).settle();
        let settled = settled.unwrap();
        for name in [settled.from, settled.to] {
            let Some(DeviceName::Soft(address)) = name else {
                panic!("{name:?}");
            };
            assert!(address.is_loopback());
        }
        let kernel = ends(ProviderPreference::Auto, Some("mlx5_77"), None)
            .settle()
            .unwrap();
        assert_eq!(kernel.from, Some(DeviceName::Verbs("mlx5_77".to_owned())));
    }

    #[test]
    fn without_a_name_the_usable_device_nearest_to_the_gpu_is_taken() {
        use fake_ibverbs::{DeviceSpec, Fake};
        let fake = Fake::load();
        for (number, name) in (1..).zip(["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]) {
            let address = std::net::Ipv4Addr::new(10, 0, 0, number);
            let mut spec = DeviceSpec::roce(name, address);
            // The nearest device is down.
            spec.ports[0].state = if name == "mlx5_3" { 1 } else { 4 };
            fake.add(spec);
        }
        let list = || Device::list_verbs(&VerbsOptions::new().library(fake.verbs())).unwrap();
        let near = |device: &str, distance: &str| NicDistance {
            device: device.to_owned(),
            distance: distance.to_owned(),
        };
        let nearest = [
            near("mlx5_3", "PIX"),
            near("mlx5_2", "PXB"),
            near("mlx5_0", "SYS"),
        ];
        let (device, why) = usable_of(list(), &nearest).unwrap();
        assert_eq!(device, "mlx5_2:1");
        assert!(why.contains("nearest to the GPU (PXB)"), "{why}");
        let (device, why) = usable_of(list(), &[]).unwrap();
        assert_eq!(device, "mlx5_0:1");
        assert!(!why.contains("nearest"), "{why}");
    }

    #[test]
    fn a_device_is_an_address_or_a_name_of_the_kernels() {
        let soft = DeviceName::Soft("127.0.0.2".parse().unwrap());
        for text in ["127.0.0.2", "soft-127.0.0.2"] {
            assert_eq!(text.parse(), Ok(soft.clone()));
        }
        for text in ["mlx5_0", "mlx5_0:2"] {
            assert_eq!(text.parse(), Ok(DeviceName::Verbs(text.to_owned())));
        }
        for text in ["", "soft-", "soft-mlx5_0"] {
            assert!(text.parse::<DeviceName>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_and_wishes_decide_and_must_agree() {
        let provider =
            |preference, from, to| ends(preference, from, to).choose().map(|it| it.provider);
        for (preference, from, to, expected) in [
            (ProviderPreference::Soft, None, None, Provider::Soft),
            (ProviderPreference::Verbs, None, None, Provider::Verbs),
            (
                ProviderPreference::Auto,
                Some("mlx5_0"),
                None,
                Provider::Verbs,
            ),
            (
                ProviderPreference::Auto,
                None,
                Some("10.0.0.1"),
                Provider::Soft,
            ),
        ] {
            assert_eq!(provider(preference, from, to).unwrap(), expected);
        }
        for (preference, from, to) in [
            (ProviderPreference::Auto, Some("mlx5_0"), Some("10.0.0.1")),
            (ProviderPreference::Soft, Some("mlx5_0"), None),
            (ProviderPreference::Verbs, None, Some("10.0.0.1")),
        ] {
            assert!(matches!(
                provider(preference, from, to),
                Err(crate::Error::Settings(_))
            ));
        }
    }
}
