//! Whose devices to use: this process' or the kernel's.

use std::net::IpAddr;
use std::str::FromStr;

use gdr_rdma::{Device, Provider, VerbsError, VerbsOptions};

use super::device::{open_both, open_connector, open_listener};
use crate::error::{Error, Result};

/// A device, as people name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// The soft provider's at this address: `127.0.0.1` or `soft-127.0.0.1`.
    Soft(IpAddr),
    /// The kernel's of this name: `mlx5_0`, or with its port `mlx5_0:2`.
    Verbs(String),
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let address = text.strip_prefix("soft-").unwrap_or(text);
        match address.parse() {
            Ok(address) => Ok(Self::Soft(address)),
            Err(_) if text.is_empty() || address != text => Err(format!(
                "there is no device `{text}`: the soft provider's devices are the addresses of \
                 this machine, such as 127.0.0.1; `gdr devices` lists them"
            )),
            Err(_) => Ok(Self::Verbs(text.to_owned())),
        }
    }
}

/// Which provider is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// The kernel's where there is a device that can be used, else this process'.
    #[default]
    Auto,
    /// This process'.
    Soft,
    /// The kernel's.
    Verbs,
}

/// Which devices are asked for.
#[derive(Clone, Debug, Default)]
pub struct Ends {
    /// Where the bytes come from.
    pub from: Option<DeviceName>,
    /// Where they go to.
    pub to: Option<DeviceName>,
    /// The UDP port of soft devices.
    pub port: u16,
    /// Whose devices.
    pub wish: Wish,
}

/// A provider, and why it was chosen.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Which.
    pub provider: Provider,
    /// Why.
    pub why: String,
}

impl Ends {
    /// Which provider's devices it comes to.
    ///
    /// # Errors
    /// [`Error::Settings`] where names and wish contradict each other.
    pub fn choose(&self) -> Result<Chosen> {
        let named = [&self.from, &self.to];
        let kernels = named.iter().find_map(|name| match name {
            Some(DeviceName::Verbs(name)) => Some(name.as_str()),
            _ => None,
        });
        let soft = named.iter().find_map(|name| match name {
            Some(DeviceName::Soft(address)) => Some(*address),
            _ => None,
        });
        let chosen = |provider, why: String| Ok(Chosen { provider, why });
        match (self.wish, kernels, soft) {
            (_, Some(name), Some(address)) => Err(Error::Settings(format!(
                "{name} is a device of the kernel and {address} one of gdr's own: name two of one \
                 kind, or use two processes"
            ))),
            (Wish::Soft, Some(name), _) => Err(Error::Settings(format!(
                "there is no device `{name}` of the soft provider: its devices are the addresses \
                 of this machine, such as 127.0.0.1"
            ))),
            (Wish::Verbs, _, Some(address)) => Err(Error::Settings(format!(
                "{address} is a device of the soft provider: `gdr devices` lists the kernel's"
            ))),
            (Wish::Soft, ..) => chosen(Provider::Soft, "asked for".to_owned()),
            (Wish::Verbs, ..) => chosen(Provider::Verbs, "asked for".to_owned()),
            (Wish::Auto, Some(name), _) => {
                chosen(Provider::Verbs, format!("{name} is a device of the kernel"))
            }
            (Wish::Auto, _, Some(address)) => chosen(
                Provider::Soft,
                format!("{address} is a device of the soft provider"),
            ),
            (Wish::Auto, None, None) => Ok(best()),
        }
    }

    /// Opens the devices of both ends in this process. One device of the kernel is enough: it
    /// sends to itself then.
    ///
    /// # Errors
    /// Those of [`Device::verbs`] and [`open_both`]; [`Error::Settings`] for a device that is not
    /// there.
    pub fn both(&self, chosen: &Chosen) -> Result<(Device, Device)> {
        if chosen.provider == Provider::Soft {
            return open_both(soft(&self.from), soft(&self.to), self.port);
        }
        let to = open_verbs(verbs(&self.to).or(verbs(&self.from)))?;
        let from = match verbs(&self.from).or(verbs(&self.to)) {
            Some(name) => open_verbs(Some(name))?,
            None => open_verbs(Some(to.name()))?,
        };
        Ok((from, to))
    }

    /// Opens the device of the end that listens on `listen`.
    ///
    /// # Errors
    /// As [`Ends::both`] and [`open_listener`].
    pub fn listener(&self, chosen: &Chosen, listen: IpAddr) -> Result<Device> {
        match chosen.provider {
            Provider::Soft => open_listener(listen, soft(&self.to), self.port),
            _ => open_verbs(verbs(&self.to)),
        }
    }

    /// Opens the device of the end that connects to `peer`.
    ///
    /// # Errors
    /// As [`Ends::both`] and [`open_connector`].
    pub fn connector(&self, chosen: &Chosen, peer: IpAddr) -> Result<Device> {
        match chosen.provider {
            Provider::Soft => open_connector(peer, soft(&self.from), self.port),
            _ => open_verbs(verbs(&self.from)),
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

/// The kernel's devices where one can be used, else this process'.
fn best() -> Chosen {
    let (provider, why) = match usable() {
        Ok(device) => (
            Provider::Verbs,
            format!("{device} is active and has a GID that routes"),
        ),
        Err(why) => (Provider::Soft, why),
    };
    Chosen { provider, why }
}

/// The first device of the kernel that can be used, or why there is none.
fn usable() -> std::result::Result<String, String> {
    let devices = Device::list_verbs(&VerbsOptions::new()).map_err(|error| error.to_string())?;
    let mut refusals = Vec::new();
    for device in &devices {
        let name = &device.name;
        let told = match &device.told {
            Ok(told) => told,
            Err(why) => {
                refusals.push(format!("{name}: {why}"));
                continue;
            }
        };
        for port in &told.ports {
            match (&port.chosen, port.active) {
                (Ok(_), true) => return Ok(format!("{name} port {}", port.number)),
                (Err(why), true) => refusals.push(format!("{name} port {}: {why}", port.number)),
                (_, false) => {
                    refusals.push(format!("{name} port {} is {}", port.number, port.state));
                }
            }
        }
    }
    Err(format!(
        "no RDMA device of the kernel can be used: {}",
        refusals.join("; ")
    ))
}

fn open_verbs(name: Option<&str>) -> Result<Device> {
    let mut options = VerbsOptions::new();
    if let Some(name) = name {
        options = options.device(name);
    }
    Device::verbs(&options).map_err(|error| match (&error, name) {
        (
            gdr_rdma::Error::Verbs(VerbsError::Load(_) | VerbsError::NoSuchDevice { .. }),
            Some(name),
        ) => Error::Settings(format!("there is no device `{name}`: {error}")),
        _ => error.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(wish: Wish, from: Option<&str>, to: Option<&str>) -> Ends {
        Ends {
            from: from.map(|name| name.parse().unwrap()),
            to: to.map(|name| name.parse().unwrap()),
            port: 0,
            wish,
        }
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
        let provider = |wish, from, to| ends(wish, from, to).choose().map(|it| it.provider);
        for (wish, from, to, expected) in [
            (Wish::Soft, None, None, Provider::Soft),
            (Wish::Verbs, None, None, Provider::Verbs),
            (Wish::Auto, Some("mlx5_0"), None, Provider::Verbs),
            (Wish::Auto, None, Some("10.0.0.1"), Provider::Soft),
        ] {
            assert_eq!(provider(wish, from, to).unwrap(), expected);
        }
        for (wish, from, to) in [
            (Wish::Auto, Some("mlx5_0"), Some("10.0.0.1")),
            (Wish::Soft, Some("mlx5_0"), None),
            (Wish::Verbs, None, Some("10.0.0.1")),
        ] {
            assert!(matches!(provider(wish, from, to), Err(Error::Settings(_))));
        }
    }
}
