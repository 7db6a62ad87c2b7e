//! The filter of a socket that reports the next change of a link: a classic BPF program over the
//! messages of rtnetlink(7).

use std::net::IpAddr;

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_K, BPF_LD, BPF_LDX, BPF_MISC,
    BPF_RET, BPF_TAX, BPF_W, sock_filter,
};

use super::link_state::{ACTIVE, LinkState};
use super::route_message::{ADDRESS, ATTRIBUTE, HEADER, INTERFACE};
use crate::address::SoftAddress;
use crate::filter::{DROP, KEEP, if_equal, statement};

/// `SKF_AD_OFF` and `SKF_AD_NLATTR` of linux/filter.h: finds the attribute of the type in X from the offset
/// in A on, and loads its offset, or 0.
const FIND_ATTRIBUTE: u32 = 0xffff_f000 + 12;
/// The offsets of the message's type, of the family, of the interface's index and flags, and of the low
/// flags of an address.
const KIND: u32 = 4;
const FAMILY: u32 = HEADER as u32;
const INDEX: u32 = HEADER as u32 + 4;
const FLAGS: u32 = HEADER as u32 + 8;
const ADDRESS_FLAGS: u32 = HEADER as u32 + 2;

/// Passes the message that says that the activity of the interface, or the presence of the address, is
/// no longer the one of `state`.
pub(super) fn program(device: &SoftAddress, state: &LinkState) -> Vec<sock_filter> {
    let mut program = Vec::new();
    section(&mut program, libc::RTM_NEWLINK, &link(device, state));
    if !device.address.is_loopback() {
        let kind = match state.has_address {
            true => libc::RTM_DELADDR,
            false => libc::RTM_NEWADDR,
        };
        section(&mut program, kind, &address(device.address));
    }
    program.push(ret(DROP));
    program
}

/// Runs `body`, which ends with a return, for messages of this kind.
fn section(program: &mut Vec<sock_filter>, kind: u16, body: &[sock_filter]) {
    program.push(statement(BPF_LD | BPF_H | BPF_ABS, KIND));
    // A load takes a number in network byte order, and netlink's are in host byte order.
    program.push(if_equal(kind.to_be().into(), 0, body.len() as u8));
    program.extend(body);
}

fn link(device: &SoftAddress, state: &LinkState) -> Vec<sock_filter> {
    // With the family of a bridge a message is about a port of one.
    let mut body = vec![
        statement(BPF_LD | BPF_B | BPF_ABS, FAMILY),
        if_equal(libc::AF_UNSPEC as u32, 1, 0),
        ret(DROP),
        // A loopback interface is active whatever its flags.
        statement(BPF_LD | BPF_W | BPF_ABS, FLAGS),
        statement(
            BPF_ALU | BPF_AND | BPF_K,
            (libc::IFF_LOOPBACK as u32).to_be(),
        ),
        if_equal(0, 1, 0),
        ret(DROP),
        statement(BPF_LD | BPF_W | BPF_ABS, FLAGS),
        statement(BPF_ALU | BPF_AND | BPF_K, ACTIVE.to_be()),
        if_equal(ACTIVE.to_be(), 0, 1),
    ];
    match state.is_active() {
        // The next two are for flags that are active, and for others.
        true => body.extend([
            ret(DROP),
            statement(BPF_LD | BPF_W | BPF_ABS, INDEX),
            if_equal(state.interface.to_be(), 0, 1),
            ret(KEEP),
        ]),
        false => {
            let by_index = [
                statement(BPF_LD | BPF_W | BPF_ABS, INDEX),
                if_equal(state.interface.to_be(), 0, 1),
                ret(KEEP),
            ];
            // An interface that was made again has another index.
            let mut name = device.interface.clone().into_bytes();
            name.push(0);
            let words: Vec<_> = name
                .chunks(4)
                .map(|chunk| {
                    let mut word = [0; 4];
                    word[..chunk.len()].copy_from_slice(chunk);
                    u32::from_be_bytes(word)
                })
                .collect();
            let by_name = attribute(HEADER + INTERFACE, libc::IFLA_IFNAME, &words);
            // Flags that are not active skip both.
            if let Some(test) = body.last_mut() {
                test.jf = (by_index.len() + by_name.len()) as u8;
            }
            body.extend(by_index);
            body.extend(by_name);
        }
    }
    body.push(ret(DROP));
    body
}

fn address(address: IpAddr) -> Vec<sock_filter> {
    let (family, octets) = match address {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    let words = octets.chunks_exact(4).map(|chunk| {
        let word = chunk.first_chunk().copied().unwrap_or_default();
        u32::from_be_bytes(word)
    });
    let words: Vec<_> = words.collect();
    let mut body = vec![
        statement(BPF_LD | BPF_B | BPF_ABS, FAMILY),
        if_equal(family as u32, 1, 0),
        ret(DROP),
        // No socket can be bound to an address that is checked for duplicates. It is reported again.
        statement(BPF_LD | BPF_B | BPF_ABS, ADDRESS_FLAGS),
        statement(BPF_ALU | BPF_AND | BPF_K, libc::IFA_F_TENTATIVE),
        if_equal(0, 1, 0),
        ret(DROP),
    ];
    // On a point-to-point link one of them is the peer's.
    for kind in [libc::IFA_LOCAL, libc::IFA_ADDRESS] {
        body.extend(attribute(HEADER + ADDRESS, kind, &words));
    }
    body.push(ret(DROP));
    body
}

/// Keeps a message whose attribute of this type, from an offset on, begins with these words; goes on after
/// it for others.
fn attribute(from: usize, kind: u16, words: &[u32]) -> Vec<sock_filter> {
    let mut program = vec![
        statement(BPF_LD | BPF_IMM, from as u32),
        statement(BPF_LDX | BPF_W | BPF_IMM, kind.into()),
        statement(BPF_LD | BPF_W | BPF_ABS, FIND_ATTRIBUTE),
        if_equal(0, 2 * words.len() as u8 + 2, 0),
        statement(BPF_MISC | BPF_TAX, 0),
    ];
    for (n, word) in words.iter().enumerate() {
        let at = ATTRIBUTE + 4 * n;
        let behind = 2 * (words.len() - 1 - n) + 1;
        program.extend([
            statement(BPF_LD | BPF_W | BPF_IND, at as u32),
            if_equal(*word, 0, behind as u8),
        ]);
    }
    program.push(ret(KEEP));
    program
}

fn ret(keep: u32) -> sock_filter {
    statement(BPF_RET | BPF_K, keep)
}
