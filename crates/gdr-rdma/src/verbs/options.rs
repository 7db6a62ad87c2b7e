//! How to open a device of the kernel.

use gdr_verbs_sys::Verbs;

/// How to open a device of the verbs provider.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct VerbsOptions {
    pub(crate) name: Option<String>,
    pub(crate) port: Option<u8>,
    pub(crate) gid_index: Option<u32>,
    pub(crate) relaxed_ordering: bool,
    pub(crate) on_demand: bool,
    pub(crate) unproved: bool,
    pub(crate) library: Option<&'static Verbs>,
}

impl VerbsOptions {
    /// The first device with a port that is active and has a GID that routes.
    pub fn new() -> Self {
        Self::default()
    }

    /// The device of this name: `mlx5_0`. `mlx5_0:2` is its second port.
    pub fn device(mut self, name: &str) -> Self {
        match name.rsplit_once(':') {
            Some((device, port)) if port.parse::<u8>().is_ok() => {
                self.name = Some(device.to_owned());
                self.port = port.parse().ok();
            }
            _ => self.name = Some(name.to_owned()),
        }
        self
    }

    /// This port of it, counted from 1, whether or not it is active.
    pub fn port(mut self, port: u8) -> Self {
        self.port = Some(port);
        self
    }

    /// The GID at this index of the port's table, whatever it is.
    pub fn gid_index(mut self, index: u32) -> Self {
        self.gid_index = Some(index);
        self
    }

    /// Trusts registrations of GPU memory untested, and so leaves the memory alone:
    /// [`ProtectionDomain::register`](crate::ProtectionDomain::register) says what the test does.
    pub fn without_proof(mut self) -> Self {
        self.unproved = true;
        self
    }

    /// Through this libibverbs instead of the one that is found.
    pub fn library(mut self, library: &'static Verbs) -> Self {
        self.library = Some(library);
        self
    }

    /// Registers host memory without pinning it: the device has each page brought in when it is
    /// touched (`IBV_ACCESS_ON_DEMAND`). Nothing counts against the limit of locked memory; the
    /// first touch of a page is slow. GPU memory is registered as ever.
    pub fn on_demand_paging(mut self) -> Self {
        self.on_demand = true;
        self
    }

    /// Lets the device write registered memory in any order within a message
    /// (`IBV_ACCESS_RELAXED_ORDERING`), where kernel and device know it: faster on some processors.
    /// A completion still comes after all bytes that it tells of.
    pub fn relaxed_ordering(mut self) -> Self {
        self.relaxed_ordering = true;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_may_stand_behind_the_name() {
        let options = VerbsOptions::new().device("mlx5_0:2");
        assert_eq!(
            (options.name.as_deref(), options.port),
            (Some("mlx5_0"), Some(2))
        );
        let options = VerbsOptions::new().device("a:b");
        assert_eq!((options.name.as_deref(), options.port), (Some("a:b"), None));
    }
}
