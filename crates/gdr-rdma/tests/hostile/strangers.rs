//! Strangers at the listener, while a peer with the key connects.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use gdr_rdma::{Listener, Security, Session, SharedKey};

use crate::attacker::soon;

fn key() -> Security {
    Security::Key(SharedKey::new("hostile suite's own key").unwrap())
}

/// What strangers do: nothing, noise, half a greeting, a greeting of another protocol.
fn strangers(at: SocketAddr) -> Vec<TcpStream> {
    let noise: [&[u8]; 6] = [
        b"",
        &[0; 44],
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &[0xff; 4096],
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"gdr",
    ];
    let mut silent = Vec::new();
    for bytes in noise {
        let mut closes = TcpStream::connect(at).unwrap();
        // The listener may have closed it already.
        let _ = closes.write_all(bytes);
        drop(closes);
        let mut stays = TcpStream::connect(at).unwrap();
        let _ = stays.write_all(bytes);
        silent.push(stays);
    }
    silent
}

#[test]
fn strangers_neither_end_nor_block_a_listener() {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let at = listener.address().unwrap();
    let held = strangers(at);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| listener.accept(&key(), soon()));
        let mut wrong = 0;
        for _ in 0..3 {
            let key = Security::Key(SharedKey::new("sixteen wrong bytes").unwrap());
            wrong += usize::from(Session::connect(at, &key, soon()).is_err());
        }
        assert_eq!(wrong, 3, "a wrong key proves nothing");
        let client = Session::connect(at, &key(), soon()).unwrap();
        assert!(client.is_authenticated());
        assert!(server.join().unwrap().unwrap().is_authenticated());
    });
    drop(held);
}
