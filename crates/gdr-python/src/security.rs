//! Keys and addresses of owners and links.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use gdr_object::{Device, Security, SharedKey};
use gdr_rdma::VerbsOptions;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::error::IntoException;

/// The TCP port of owners, unless one is given.
const PORT: u16 = 4791;

/// The peers that a key allows: `None` is those of this host, bytes are the key, and a path is that of
/// a file with it.
pub(crate) fn security(key: Option<&Bound<'_, PyAny>>) -> PyResult<Security> {
    let Some(key) = key else {
        return Ok(Security::Loopback);
    };
    let key = if let Ok(bytes) = key.extract::<Vec<u8>>() {
        SharedKey::new(bytes)
    } else if let Ok(path) = key.extract::<PathBuf>() {
        SharedKey::read(&path)
    } else {
        let name = key.get_type().qualname()?;
        return Err(PyTypeError::new_err(format!(
            "a {name} is not a key: pass bytes, at least 16, or the path of a file with them"
        )));
    };
    key.map(Security::Key)
        .map_err(IntoException::into_exception)
}

/// The address of an owner: an IP address, and its port unless that is 4791.
pub(crate) fn address(text: &str) -> PyResult<SocketAddr> {
    let with_port = text.parse();
    let alone = || text.parse().map(|ip: IpAddr| SocketAddr::new(ip, PORT));
    with_port.or_else(|_| alone()).map_err(|_| {
        PyValueError::new_err(format!(
            "{text:?} is not an address: pass an IP address with or without a port, such as \
             127.0.0.1:7000 or [::1]:7000"
        ))
    })
}

/// The RDMA device of this name, `None` for one of gdr's own at the address that leads to the peer.
pub(crate) fn device(nic: Option<String>) -> PyResult<Option<Device>> {
    let opened = nic.map(|name| Device::verbs(&VerbsOptions::new().device(&name)));
    opened.transpose().map_err(IntoException::into_exception)
}
