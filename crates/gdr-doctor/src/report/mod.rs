//! A diagnosis, written for people and for programs.

pub mod html;
pub mod json;
pub mod junit;
pub mod markdown;
pub mod prometheus;
pub mod text;
mod words;

pub(crate) use words::terms;
