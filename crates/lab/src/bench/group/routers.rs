//! Starts the routers of a measurement. Each measurement of the bench starts with fresh routers, and starts
//! its members afterwards.

use anyhow::Result;

use super::{
    super::child::Child,
    args::Args,
    spec::{MemberPart, spec},
};

/// Starts the routers. Also returns their addresses.
pub(super) fn routers(args: &Args) -> Result<(Vec<Child>, Vec<String>)> {
    let (mut routers, mut addresses) = (Vec::new(), Vec::new());
    for number in 1..=args.routers {
        let spec = spec(args, MemberPart::Router, number, &addresses);
        let mut router = Child::start(format!("router-{number}"), "group-process", &spec)?;
        addresses.push(router.line()?);
        routers.push(router);
    }
    Ok((routers, addresses))
}
