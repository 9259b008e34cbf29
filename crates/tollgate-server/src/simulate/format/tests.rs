//! One line of each format, and the fields that it has.

use super::*;

const FIELDS: [Field; 7] =
    [Field::Time, Field::Address, Field::User, Field::Method, Field::Path, Field::Host, Field::Bytes];

fn read(lines: &[&str], line: &str) -> (&'static str, Vec<Option<String>>) {
    let mut wanted = FIELDS.to_vec();
    wanted.push(Field::Header("user-agent".into()));
    let sample: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    let format = Format::detect(FormatChoice::Auto, &sample, &wanted, &[]).unwrap();
    let mut values = Values::new();
    format.read(line, &wanted, &mut values).unwrap();
    (format.name(), values.into_iter().map(|value| value.map(Cow::into_owned)).collect())
}

fn expect(line: &str, format: &str, fields: [&str; 8]) {
    let (name, values) = read(&[line], line);
    let fields = fields.map(|field| (field != "-").then(|| field.to_owned()));
    assert_eq!((name, values), (format, fields.to_vec()), "{line}");
    assert!(parse_time(read(&[line], line).1[0].as_deref().unwrap()).is_some());
}

#[test]
fn nginx_and_apache_are_combined_or_common() {
    expect(
        r#"192.0.2.1 - alice [10/Oct/2000:13:55:36 -0700] "GET /a?b=c HTTP/1.0" 200 2326 "https://r.example/" "agent \"7\" \x41""#,
        "combined",
        ["10/Oct/2000:13:55:36 -0700", "192.0.2.1", "alice", "GET", "/a?b=c", "-", "2326", "agent \"7\" A"],
    );
    expect(
        r#"2001:db8::1 - - [10/Oct/2000:13:55:36 -0700] "-" 400 -"#,
        "combined",
        ["10/Oct/2000:13:55:36 -0700", "2001:db8::1", "-", "-", "-", "-", "0", "-"],
    );
}

#[test]
fn envoy_names_the_last_address_that_was_forwarded() {
    expect(
        r#"[2016-04-15T20:17:00.310Z] "POST /api/v1 HTTP/2" 204 - 154 7 226 100 "1.1.1.1, 192.0.2.1" "nsq2http" "cc21d9b0" "locations" "10.0.2.1:80""#,
        "envoy",
        ["2016-04-15T20:17:00.310Z", "192.0.2.1", "-", "POST", "/api/v1", "locations", "7", "nsq2http"],
    );
    expect(
        r#"[2016-04-15T20:17:00.310Z] "GET / HTTP/1.1" 200 - 0 7 226 - "-" "-" "cc21d9b0" "a" "-""#,
        "envoy",
        ["2016-04-15T20:17:00.310Z", "-", "-", "GET", "/", "a", "7", "-"],
    );
}

#[test]
fn load_balancers_of_aws_are_application_and_classic() {
    expect(
        r#"https 2018-07-02T22:23:00.186641Z app/my-loadbalancer/50dc6c495c0c9188 192.0.2.1:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57 "GET https://www.example.com:443/p HTTP/1.1" "curl/7.46.0" ECDHE-RSA TLSv1.2 arn:aws"#,
        "aws",
        [
            "2018-07-02T22:23:00.186641Z",
            "192.0.2.1:2817",
            "-",
            "GET",
            "/p",
            "www.example.com:443",
            "57",
            "curl/7.46.0",
        ],
    );
    expect(
        r#"2015-05-13T23:39:43.945958Z my-loadbalancer 192.0.2.1:2817 10.0.0.1:80 0.000073 0.001048 0.000057 200 200 0 29 "GET http://www.example.com:80/ HTTP/1.1" "curl/7.38.0" - -"#,
        "aws",
        [
            "2015-05-13T23:39:43.945958Z",
            "192.0.2.1:2817",
            "-",
            "GET",
            "/",
            "www.example.com:80",
            "29",
            "curl/7.38.0",
        ],
    );
}

#[test]
fn json_is_caddys_or_traefiks_or_has_the_usual_names() {
    expect(
        r#"{"level":"info","ts":1646861401.5241024,"logger":"http.log.access","request":{"remote_ip":"10.0.0.1","client_ip":"192.0.2.1","proto":"HTTP/2.0","method":"GET","host":"localhost","uri":"/x","headers":{"User-Agent":["curl/7.82.0","b"],"Accept":["*/*"]}},"user_id":"","size":10900,"status":200}"#,
        "caddy",
        ["1646861401.5241024", "192.0.2.1", "-", "GET", "/x", "localhost", "10900", "curl/7.82.0"],
    );
    expect(
        r#"{"ClientAddr":"192.0.2.1:50","ClientHost":"192.0.2.1","ClientUsername":"-","DownstreamContentSize":5,"RequestHost":"a","RequestMethod":"GET","RequestPath":"/w","StartUTC":"2026-01-01T00:00:00.5Z","request_User-Agent":"u","time":"2026-01-01T00:00:01Z"}"#,
        "traefik",
        ["2026-01-01T00:00:00.5Z", "192.0.2.1", "-", "GET", "/w", "a", "5", "u"],
    );
    expect(
        r#"{"@timestamp":"2026-01-01T00:00:00Z","remote_addr":"192.0.2.1","user":"\u0061l","method":"GET","path":"/","host":"h","bytes":5,"http_user_agent":"u","nested":{"time":1}}"#,
        "json",
        ["2026-01-01T00:00:00Z", "192.0.2.1", "al", "GET", "/", "h", "5", "u"],
    );
}

#[test]
fn csv_has_its_columns_in_any_order() {
    let header = "\u{feff}path,time,ip,user,method,host,bytes,user-agent";
    let line = r#""/a,""b""",2026-01-01 00:00:00,192.0.2.1,,GET,h,7,u"#;
    let (name, values) = read(&[header, line], line);
    assert_eq!(name, "csv");
    let values: Vec<&str> = values.iter().map(|value| value.as_deref().unwrap_or("-")).collect();
    assert_eq!(values, ["2026-01-01 00:00:00", "192.0.2.1", "-", "GET", "/a,\"b\"", "h", "7", "u"]);
}

#[test]
fn a_field_is_found_under_the_name_that_the_option_has() {
    let wanted = [Field::Time, Field::Named("tokens".into())];
    let names = ["time=meta.at".parse().unwrap(), "tokens=usage.total".parse().unwrap()];
    let line = r#"{"meta":{"at":"2026-01-01T00:00:00Z"},"usage":{"total":12},"time":"no"}"#;
    let format = Format::detect(FormatChoice::Auto, &[line.into()], &wanted, &names).unwrap();
    let mut values = Values::new();
    format.read(line, &wanted, &mut values).unwrap();
    assert_eq!(values.as_slice(), [Some("2026-01-01T00:00:00Z".into()), Some("12".into())]);
}

#[test]
fn a_log_without_times_is_unknown_and_a_broken_line_says_why() {
    let sample = ["hello world".to_owned(), "1,2,3".to_owned()];
    let error = Format::detect(FormatChoice::Auto, &sample, &FIELDS, &[]).unwrap_err();
    assert!(error.contains("--field time=ts"), "{error}");
    let line = r#"192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 1"#.to_owned();
    let named = ["time=ts".parse().unwrap()];
    let error = Format::detect(FormatChoice::Auto, &[line], &FIELDS, &named).unwrap_err();
    assert!(error.contains("--field time=ts is for JSON and CSV logs"), "{error}");
    let why =
        |format: Format, line: &str| format.read(line, &FIELDS, &mut Values::new()).unwrap_err().into_owned();
    assert!(why(Format::Combined, "192.0.2.1 - - [10/Oct").contains("combined"));
    assert!(why(Format::Json(Document::new(json::Flavour::Plain, &FIELDS, &[])), "{\"a\":").contains("JSON"));
    assert!(why(Format::Csv(Columns::read("a,b", &FIELDS, &[])), "1").contains("has 1 columns"));
}
