//! Keys and addresses of owners and links.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use gdr_object::{Device, Security, SharedKey};
use gdr_rdma::VerbsOptions;
use pyo3::exceptions::{PyOSError, PyTypeError, PyUnicodeError, PyValueError};
use pyo3::prelude::*;

use crate::error::IntoException;

/// The TCP port of owners, unless one is given.
const PORT: u16 = 4791;

/// Returns the peers that a key allows: `None` allows this host's, bytes are the key, and a path names a file with it.
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

/// Returns the address of an owner: an IP address or a host name, and its port unless that is 4791.
pub(crate) fn address(py: Python<'_>, text: &str) -> PyResult<SocketAddr> {
    let with_port = text.parse();
    let alone = || text.parse().map(|ip: IpAddr| SocketAddr::new(ip, PORT));
    if let Ok(address) = with_port.or_else(|_| alone()) {
        return Ok(address);
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()),
        None => (text, Some(PORT)),
    };
    let found = port.map(|port| resolve(py, host, port)).transpose()?;
    found.flatten().ok_or_else(|| {
        PyValueError::new_err(format!(
            "{text:?} is not an address, and no host has this name: pass an address or a name with or \
             without a port, such as 127.0.0.1:7000, [::1]:7000 or node1:7000"
        ))
    })
}

/// Resolves the first address of a host by Python's resolver, which a signal interrupts.
fn resolve(py: Python<'_>, host: &str, port: u16) -> PyResult<Option<SocketAddr>> {
    let socket = py.import("socket")?;
    let of_streams = (host, port, 0, socket.getattr("SOCK_STREAM")?);
    let found = match socket.call_method1("getaddrinfo", of_streams) {
        Ok(found) => found,
        // An unknown name, or a text that is not a valid name.
        Err(error) if error.is_instance_of::<PyOSError>(py) => return Ok(None),
        Err(error) if error.is_instance_of::<PyUnicodeError>(py) => return Ok(None),
        Err(error) => return Err(error),
    };
    for entry in found.try_iter()? {
        let address: String = entry?.get_item(4)?.get_item(0)?.extract()?;
        if let Ok(ip) = address.parse() {
            return Ok(Some(SocketAddr::new(ip, port)));
        }
    }
    Ok(None)
}

/// Returns the RDMA device of this name, `None` for one of gdr's own at the address that leads to the peer.
pub(crate) fn device(nic: Option<String>) -> PyResult<Option<Device>> {
    let opened = nic.map(|name| Device::verbs(&VerbsOptions::new().device(&name)));
    opened.transpose().map_err(IntoException::into_exception)
}
