//! Common client libraries, and redis-benchmark.

use super::*;

#[test]
fn redis_py_connects_pipelines_pools_and_authenticates() {
    const SCRIPT: &str = r"
import asyncio, sys, threading
import redis, redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry
port, token = int(sys.argv[1]), sys.argv[2]

def connect(protocol, **more):
    more = {'protocol': protocol, **more} if protocol else more
    return redis.Redis(host='127.0.0.1', port=port, decode_responses=True, **more)

# By itself it tries again, later and later, even what is refused for lack of a password.
once = Retry(NoBackoff(), 0)
# As it comes, and by version.
for protocol in (None, 2, 3):
    with connect(protocol, client_name='me', health_check_interval=1e-9) as client:
        assert client.ping() is True
        assert client.client_getname() == 'me'
        assert client.echo('hello') == 'hello'
        assert client.info()['redis_version'].startswith('7.')
        key = f'py-{protocol}'
        assert client.execute_command('CL.THROTTLE', key, 15, 30, 60) == [0, 16, 15, -1, 2]
        check = client.execute_command('TOLL.CHECK', 'client', key, 'COST', 3)
        if protocol == 2:
            check = dict(zip(check[::2], check[1::2]))
        assert (check['allowed'], check['limit'], check['remaining']) == (True, 10, 7), check
        assert (check['rule'], check['degraded'], check['retry_after_ms']) == ('per-client', False, 0), check
        check = client.execute_command('TOLL.CHECK', 'path', '/x')
        assert (check['rule'] if protocol == 3 or isinstance(check, dict) else check[11]) is None, check
        try:
            client.get('k')
            raise SystemExit('GET was answered')
        except redis.ResponseError as error:
            assert 'unknown command' in str(error), error

        # By itself it makes a transaction of it.
        for transaction in (True, False):
            pipeline = client.pipeline(transaction=transaction)
            for _ in range(100):
                pipeline.execute_command('CL.THROTTLE', f'{key}-pipe-{transaction}', 9, 1, 3600)
            answers = pipeline.execute()
            assert [answer[0] for answer in answers] == [0] * 10 + [1] * 90, answers
            assert [answer[2] for answer in answers[:10]] == list(range(9, -1, -1)), answers

        # Eight threads, each with a connection of its own out of the pool.
        admitted, start = [], threading.Barrier(8)
        def work():
            start.wait()
            for _ in range(25):
                if client.execute_command('CL.THROTTLE', key + '-pool', 9, 1, 3600)[0] == 0:
                    admitted.append(1)
        threads = [threading.Thread(target=work) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert len(admitted) == 10, len(admitted)

        try:
            connect(protocol, retry=once).execute_command('TOLL.RESET', key)
            raise SystemExit('TOLL.RESET without a password')
        except redis.AuthenticationError as error:
            assert 'Authentication required' in str(error), error

    with connect(protocol, password=token) as admin:
        assert admin.execute_command('TOLL.RESET', key + '-pool') in ('OK', True)
        assert admin.execute_command('CL.THROTTLE', key + '-pool', 9, 1, 3600)[:3] == [0, 10, 9]
        rules = admin.execute_command('TOLL.RULES')
        first = rules[0] if isinstance(rules[0], dict) else dict(zip(rules[0][::2], rules[0][1::2]))
        assert (first['name'], first['limits']) == ('per-client', ['10/minute fixed']), rules
    with connect(protocol, username='anyone', password=token) as admin:
        assert admin.ping()
    try:
        connect(protocol, password='wrong', retry=once).ping()
        raise SystemExit('a wrong password was taken')
    except redis.AuthenticationError as error:
        assert 'invalid username-password pair' in str(error), error

async def concurrently():
    async with redis.asyncio.Redis(host='127.0.0.1', port=port) as client:
        calls = (client.execute_command('CL.THROTTLE', 'py-async', 9, 1, 3600) for _ in range(50))
        answers = await asyncio.gather(*calls)
        assert sorted(answer[0] for answer in answers) == [0] * 10 + [1] * 40, answers
asyncio.run(concurrently())
";
    let server = Server::everywhere(&[]);
    let python = python_with("redis==8.1.0").join("python");
    let ran = Command::new(python).args(["-c", SCRIPT, port(&server), TOKEN]).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn ioredis_gets_ready_pipelines_and_authenticates() {
    const SCRIPT: &str = r"
const assert = require('node:assert/strict');
const Redis = require('ioredis');
const [port, token] = [Number(process.argv[1]), process.argv[2]];
const connect = (options) => new Redis({ port, host: '127.0.0.1', retryStrategy: null, ...options });
const ready = (redis) => new Promise((yes, no) => redis.once('ready', yes).once('error', no).once('end', no));

async function speak(protocol) {
  const redis = connect({ protocol, connectionName: 'me' });
  assert.equal(redis.options.enableReadyCheck, true);
  await ready(redis);
  assert.equal(await redis.ping(), 'PONG');
  assert.equal(await redis.client('GETNAME'), 'me');
  assert.match(await redis.info(), /redis_version:7/);
  const key = `node-${protocol}`;
  assert.deepEqual(await redis.call('CL.THROTTLE', key, 15, 30, 60), [0, 16, 15, -1, 2]);
  let check = await redis.call('TOLL.CHECK', 'client', key, 'COST', 3);
  if (Array.isArray(check)) {
    check = Object.fromEntries(check.flatMap((name, i) => (i % 2 ? [] : [[name, check[i + 1]]])));
  }
  check = check instanceof Map ? Object.fromEntries(check) : check;
  assert.equal(Number(check.allowed), 1);
  assert.deepEqual([check.limit, check.remaining, check.rule], [10, 7, 'per-client']);

  const pipeline = redis.pipeline();
  for (let i = 0; i < 100; i += 1) pipeline.call('CL.THROTTLE', `${key}-pipe`, 9, 1, 3600);
  const answers = await pipeline.exec();
  assert.deepEqual(answers.map(([error, five]) => error ?? five[0]), [...Array(10).fill(0), ...Array(90).fill(1)]);
  assert.deepEqual(answers.slice(0, 10).map(([, five]) => five[2]), [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
  const multi = await redis.multi().call('CL.THROTTLE', `${key}-multi`, 9, 1, 3600).ping().exec();
  assert.deepEqual(multi, [[null, [0, 10, 9, -1, 3600]], [null, 'PONG']]);
  const mixed = await redis.pipeline().call('PING').call('NONSENSE').call('CL.THROTTLE', key, 15, 30, 60, 0).exec();
  assert.equal(mixed[0][1], 'PONG');
  assert.match(mixed[1][0].message, /unknown command/);
  assert.equal(mixed[2][1][1], 16);
  await assert.rejects(redis.call('TOLL.RESET', key), /NOAUTH/);
  assert.equal(await redis.quit(), 'OK');

  const admin = connect({ protocol, password: token });
  await ready(admin);
  assert.equal(await admin.call('TOLL.RESET', `${key}-pipe`), 'OK');
  assert.deepEqual((await admin.call('CL.THROTTLE', `${key}-pipe`, 9, 1, 3600)).slice(0, 3), [0, 10, 9]);
  admin.disconnect();

  const wrong = connect({ protocol, password: 'wrong', lazyConnect: true, maxRetriesPerRequest: 0 });
  let complaint = '';
  wrong.on('error', (error) => { complaint += error.message; });
  await assert.rejects(wrong.connect().then(() => wrong.call('TOLL.RULES')));
  assert.match(complaint, /WRONGPASS/);
  wrong.disconnect();
}

Promise.resolve().then(() => speak(2)).then(() => speak(3)).then(
  () => process.exit(0),
  (error) => { console.error(error); process.exit(1); },
);
";
    let server = Server::everywhere(&[]);
    let mut node = Command::new("node");
    node.current_dir(node_tools()).args(["-e", SCRIPT, port(&server), TOKEN]);
    let ran = node.output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn the_rust_client_connects_pipelines_and_authenticates() {
    let server = Server::everywhere(&[]);
    for version in ["resp2", "resp3"] {
        let mut client = connect(&server, "", version).unwrap();
        let mut throttle = redis::cmd("CL.THROTTLE");
        throttle.arg(version).arg(&[15, 30, 60]);
        assert_eq!(throttle.query::<[i64; 5]>(&mut client).unwrap(), [0, 16, 15, -1, 2]);
        let mut check = redis::cmd("TOLL.CHECK");
        check.arg("client").arg(version).arg("COST").arg(4);
        let reported: HashMap<String, Value> = check.query(&mut client).unwrap();
        assert_eq!((&reported["limit"], &reported["remaining"]), (&Value::Int(10), &Value::Int(6)));
        let truth = |truth: bool| {
            if version == "resp3" { Value::Boolean(truth) } else { Value::Int(truth.into()) }
        };
        assert_eq!((&reported["allowed"], &reported["degraded"]), (&truth(true), &truth(false)));
        let uncovered: HashMap<String, Value> =
            redis::cmd("TOLL.CHECK").arg("path").arg("/x").query(&mut client).unwrap();
        assert_eq!((&uncovered["limit"], &uncovered["rule"]), (&Value::Nil, &Value::Nil));

        let mut pipeline = redis::pipe();
        for _ in 0..100 {
            pipeline.cmd("CL.THROTTLE").arg(format!("{version}-pipe")).arg(&[9, 1, 3600]);
        }
        let answers: Vec<[i64; 5]> = pipeline.atomic().query(&mut client).unwrap();
        let limited: Vec<i64> = answers.iter().map(|answer| answer[0]).collect();
        assert_eq!(limited, [[0; 10].as_slice(), &[1; 90]].concat());

        let mut reset = redis::cmd("TOLL.RESET");
        reset.arg(format!("{version}-pipe"));
        assert_eq!(reset.exec(&mut client).unwrap_err().code(), Some("NOAUTH"));
        let mut admin = connect(&server, &format!(":{TOKEN}@"), version).unwrap();
        reset.exec(&mut admin).unwrap();
        assert_eq!(pipeline.query::<Vec<[i64; 5]>>(&mut client).unwrap()[9][..3], [0, 10, 0]);
        let wrong = connect(&server, ":wrong@", version).err().unwrap();
        let refused = wrong.kind() == ErrorKind::AuthenticationFailed || wrong.code() == Some("WRONGPASS");
        assert!(refused, "{wrong:?}");
    }
}

#[test]
fn b9_tasks_that_share_a_connection_race_for_one_budget() {
    let server = Server::everywhere(&[]);
    let runtime = runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    for version in ["resp2", "resp3"] {
        let address = format!("redis://{}/?protocol={version}", server.listens("resp"));
        let admitted = runtime.block_on(async {
            let client = Client::open(address).unwrap().get_multiplexed_async_connection().await.unwrap();
            let mut tasks = JoinSet::new();
            for _ in 0..100 {
                let mut client = client.clone();
                tasks.spawn(async move {
                    let mut throttle = redis::cmd("CL.THROTTLE");
                    throttle.arg(version).arg(&[9, 1, 3600]);
                    let five: [i64; 5] = throttle.query_async(&mut client).await.unwrap();
                    five[0] == 0
                });
            }
            tasks.join_all().await.into_iter().filter(|admitted| *admitted).count()
        });
        assert_eq!(admitted, 10);
    }
}

#[test]
fn b9_redis_benchmark_runs_and_never_exceeds_the_limit() {
    let server = Server::everywhere(&[]);
    let benchmark = |arguments: &str| {
        let mut benchmark = Command::new("redis-benchmark");
        let ran = benchmark.args(["-p", port(&server)]).args(arguments.split(' ')).output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8(said).unwrap()).concat();
        for complaint in ["WARN", "CONFIG", "rror"] {
            assert!(!said.contains(complaint), "{said}");
        }
        said
    };
    benchmark("-n 2000 -c 20 -P 16 CL.THROTTLE key 9 1 3600");
    assert_eq!(counts(&server, "cl.throttle"), (10, 1990));
    assert!(benchmark("-n 1000 -t ping -q").contains("PING_MBULK: "));
    benchmark("-3 -n 500 -c 5 -P 4 TOLL.CHECK client bench");
    assert_eq!(counts(&server, "per-client"), (10, 490));
}

#[test]
fn tls_serves_clients_that_trust_the_certificate_and_no_cleartext() {
    let directory = directory("resp-tls");
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // With the default name, OpenSSL takes the certificates it issues for its own.
    params.distinguished_name.push(DnType::CommonName, "an authority");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    fs::write(directory.join("ca.pem"), authority.as_ref().pem()).unwrap();
    fs::write(directory.join("server.pem"), certificate.pem()).unwrap();
    fs::write(directory.join("server.key"), key.serialize_pem()).unwrap();
    let file = directory.join("tollgate.toml");
    fs::write(&file, "[server.tls]\ncert = \"server.pem\"\nkey = \"server.key\"").unwrap();
    let server = Server::everywhere(&["--config", file.to_str().unwrap()]);

    let mut cli = redis_cli(&server, "-3");
    cli.args(["-h", "localhost", "--tls", "--sni", "localhost", "--cacert"]).arg(directory.join("ca.pem"));
    let shown = said(&cli.args(["CL.THROTTLE", "user123", "15", "30", "60"]).output().unwrap());
    assert_eq!(shown, five([0, 16, 15, -1, 2]));

    for version in ["resp2", "resp3"] {
        let address = format!("rediss://:{TOKEN}@localhost:{}/?protocol={version}", port(&server));
        let trusting = |pem: Option<String>| {
            let tls = TlsCertificates { client_tls: None, root_cert: pem.map(String::into_bytes) };
            Client::build_with_tls(address.as_str(), tls)?.get_connection()
        };
        let mut client = trusting(Some(authority.as_ref().pem())).unwrap();
        let mut pipeline = redis::pipe();
        for _ in 0..1000 {
            pipeline.cmd("CL.THROTTLE").arg(version).arg(&[9, 1, 3600]);
        }
        let answers: Vec<[i64; 5]> = pipeline.query(&mut client).unwrap();
        assert_eq!(answers.iter().filter(|answer| answer[0] == 0).count(), 10);
        // More than a socket buffers: encrypted bytes that are not sent yet must not be lost.
        let mut pipeline = redis::pipe();
        (0..5_000).for_each(|_| _ = pipeline.cmd("COMMAND"));
        assert_eq!(pipeline.query::<Vec<Value>>(&mut client).unwrap().len(), 5_000);
        redis::cmd("TOLL.RESET").arg(version).exec(&mut client).unwrap();
        assert!(trusting(None).is_err(), "the CA is unknown");
    }
    let mut clear = Wire::connect(&server);
    clear.send("PING\r\n");
    assert!(!clear.rest().contains("PONG"));
}
