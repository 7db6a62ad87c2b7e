//! The filter of a socket that reports the next change of a link: a classic BPF program over rtnetlink(7) messages.

use std::net::IpAddr;

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_K, BPF_LD, BPF_LDX, BPF_MISC,
    BPF_RET, BPF_TAX, BPF_W, sock_filter,
};

use super::link_state::{ACTIVE, LinkState};
use super::route_message::{ADDRESS, ATTRIBUTE, HEADER, INTERFACE};
use crate::address::SoftAddress;
use crate::filter::{DROP, KEEP, if_equal, statement};

/// `SKF_AD_OFF` and `SKF_AD_NLATTR` of linux/filter.h: searches from the offset in A for the attribute of the type in
/// X, and loads its offset, or 0.
const FIND_ATTRIBUTE: u32 = 0xffff_f000 + 12;
/// Offsets of the message type, the family, the interface's index and flags, and the low flags of an address.
const KIND: u32 = 4;
const FAMILY: u32 = HEADER as u32;
const INDEX: u32 = HEADER as u32 + 4;
const FLAGS: u32 = HEADER as u32 + 8;
const ADDRESS_FLAGS: u32 = HEADER as u32 + 2;

/// Returns the program that passes a message only if it shows that the interface's activity, or the address's presence,
/// differs from `state`.
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

/// Runs `body`, which must end with a return, for messages of this type.
fn section(program: &mut Vec<sock_filter>, kind: u16, body: &[sock_filter]) {
    program.push(statement(BPF_LD | BPF_H | BPF_ABS, KIND));
    // A load converts from network byte order, but netlink uses host byte order.
    program.push(if_equal(kind.to_be().into(), 0, body.len() as u8));
    program.extend(body);
}

fn link(device: &SoftAddress, state: &LinkState) -> Vec<sock_filter> {
    // Messages with a bridge family concern a bridge port.
    let mut body = vec![
        statement(BPF_LD | BPF_B | BPF_ABS, FAMILY),
        if_equal(libc::AF_UNSPEC as u32, 1, 0),
        ret(DROP),
        // A loopback interface counts as active whatever its flags.
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
        // Active flags skip the return; others fall through to it.
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
            // An interface that was recreated has another index, so the name is compared, too.
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
            // If the flags are not active, both comparisons are skipped.
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
        // A tentative address cannot be bound yet. The kernel reports it again once duplicate detection is done.
        statement(BPF_LD | BPF_B | BPF_ABS, ADDRESS_FLAGS),
        statement(BPF_ALU | BPF_AND | BPF_K, libc::IFA_F_TENTATIVE),
        if_equal(0, 1, 0),
        ret(DROP),
    ];
    // On a point-to-point link, one of the two is the peer's address.
    for kind in [libc::IFA_LOCAL, libc::IFA_ADDRESS] {
        body.extend(attribute(HEADER + ADDRESS, kind, &words));
    }
    body.push(ret(DROP));
    body
}

/// Returns instructions that keep a message whose first attribute of this type, searched from `from` on, begins with
/// these words, and fall through otherwise.
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
