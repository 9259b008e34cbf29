use super::*;

#[test]
fn c7_toll_record_is_never_denied_and_says_what_is_owed() {
    let server = Server::everywhere(&[]);
    for (version, client) in VERSIONS.into_iter().zip(["two", "three"]) {
        let record = |cost: u64| cli(&server, version, &format!("TOLL.RECORD client {client} COST {cost}"));
        let left = record(7);
        assert!(left.contains("shortfall") && !left.contains("\"owed\""), "{left}");
        let owed = record(5).replace('\n', " ");
        assert!(owed.contains("\"owed\"") && owed.contains("(integer) 2"), "{owed}");
        let check = cli(&server, version, &format!("TOLL.CHECK client {client} COST 0")).replace('\n', " ");
        let denied = if version == "-3" { "\"allowed\" => (false)" } else { "\"allowed\"  2) (integer) 0" };
        assert!(check.contains(denied), "{check}");
        assert!(record(100).contains("(integer) 92"), "the debt is one whole limit of 10");
    }
    assert!(cli(&server, "-3", "TOLL.RECORD client a PEEK").contains("cannot PEEK"));
}
