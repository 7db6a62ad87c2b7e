//! The devices that the suite runs on.

use std::fmt;

use gdr_rdma::{AckTimeout, ConnectionOptions, Device, Mtu, WcStatus};

use crate::side::{Side, connect};

/// Two devices that can reach each other. Each test opens them again.
pub struct Bench<'a> {
    near: &'a dyn Fn() -> Device,
    far: &'a dyn Fn() -> Device,
    options: ConnectionOptions,
    /// Status of a request whose message is longer than its receive.
    pub(crate) long_message: WcStatus,
}

impl fmt::Debug for Bench<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bench").finish_non_exhaustive()
    }
}

impl<'a> Bench<'a> {
    /// Creates a bench of the devices that `near` and `far` open. Requests go from the first to the second.
    pub fn new(near: &'a dyn Fn() -> Device, far: &'a dyn Fn() -> Device) -> Self {
        let mut options = ConnectionOptions::new(Mtu::B4096);
        // Half a second, and eight times that: a software NIC that gets no CPU for long has not failed.
        options.timeout = AckTimeout::new(17);
        Self {
            near,
            far,
            options,
            long_message: WcStatus::RemoteInvalidRequest,
        }
    }

    /// Connections have these options.
    #[must_use]
    pub fn options(self, options: ConnectionOptions) -> Self {
        Self { options, ..self }
    }

    /// Sets the status of a message longer than its receive, on a far device that does not refuse it as IBTA specifies.
    #[must_use]
    pub fn long_message(self, long_message: WcStatus) -> Self {
        Self {
            long_message,
            ..self
        }
    }

    pub(crate) fn near(&self) -> Device {
        (self.near)()
    }

    /// Creates a side on each device, without a connection.
    pub(crate) fn apart(&self) -> (Side, Side) {
        (Side::on((self.near)()), Side::on((self.far)()))
    }

    /// Creates a side on each device, and connects them.
    pub(crate) fn sides(&self) -> (Side, Side) {
        self.sides_with(|_| {})
    }

    /// Like [`Bench::sides`], with other options.
    pub(crate) fn sides_with(&self, change: impl FnOnce(&mut ConnectionOptions)) -> (Side, Side) {
        let (a, b) = self.apart();
        let mut options = self.options;
        change(&mut options);
        connect(&a, &b, &options);
        (a, b)
    }

    pub(crate) fn connection(&self) -> &ConnectionOptions {
        &self.options
    }
}
