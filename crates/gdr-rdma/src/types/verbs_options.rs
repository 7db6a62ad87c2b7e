//! How to open a kernel device.

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
    pub(crate) skip_verification: bool,
    pub(crate) library: Option<&'static Verbs>,
}

impl VerbsOptions {
    /// Opens the first device that has an active port with a routable GID.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens the device with this name, such as `mlx5_0`; `mlx5_0:2` selects its second port.
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

    /// Uses this port, counted from 1.
    pub fn port(mut self, port: u8) -> Self {
        self.port = Some(port);
        self
    }

    /// Uses the GID at this index of the port's table.
    pub fn gid_index(mut self, index: u32) -> Self {
        self.gid_index = Some(index);
        self
    }

    /// Registers GPU memory without verifying it by a transfer, and so does not touch the memory:
    /// [`ProtectionDomain::register`](crate::ProtectionDomain::register) describes the verification.
    pub fn skip_verification(mut self) -> Self {
        self.skip_verification = true;
        self
    }

    /// Uses this libibverbs instead of searching for one.
    pub fn library(mut self, library: &'static Verbs) -> Self {
        self.library = Some(library);
        self
    }

    /// Registers host memory without pinning it: each page is faulted in when the device first
    /// accesses it (`IBV_ACCESS_ON_DEMAND`). The memory does not count against the limit of locked
    /// memory, and the first access to a page is slow. GPU memory is registered as usual.
    pub fn on_demand_paging(mut self) -> Self {
        self.on_demand = true;
        self
    }

    /// Lets the device write the bytes of a message to registered memory in any order
    /// (`IBV_ACCESS_RELAXED_ORDERING`), if the kernel and the device support it, which is faster on some
    /// processors. A completion still follows all bytes of its message.
    pub fn relaxed_ordering(mut self) -> Self {
        self.relaxed_ordering = true;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_may_follow_the_name() {
        let options = VerbsOptions::new().device("mlx5_0:2");
        assert_eq!(
            (options.name.as_deref(), options.port),
            (Some("mlx5_0"), Some(2))
        );
        let options = VerbsOptions::new().device("a:b");
        assert_eq!((options.name.as_deref(), options.port), (Some("a:b"), None));
    }
}
