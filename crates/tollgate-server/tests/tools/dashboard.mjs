// Drives the dashboard in a real browser. The test that starts it owns the server: a line on
// standard output is a request to the test, and a line on standard input is its answer.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { ADDRESS, TOKEN, TOOLS, SCREENSHOTS } = process.env;
const { chromium } = createRequire(`${TOOLS}/`)("playwright-core");
const HOSTILE = `<img src=x onerror="document.title='owned'">\u202e\u0007"&amp;`;

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Asks the test to do something, and waits until it is done. */
async function ask(what) {
  process.stdout.write(`${what}\n`);
  return (await lines.next()).value;
}

/** A page that fails the test on any error in its console. */
async function open(browser, options = {}, fragment = "") {
  const context = await browser.newContext({ viewport: { width: 1100, height: 800 }, ...options });
  const page = await context.newPage();
  page.errors = [];
  // A refused request is logged by the browser itself.
  const isRefusal = (text) => text.startsWith("Failed to load resource");
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && !isRefusal(message.text()) && page.errors.push(message.text()));
  page.on("pageerror", (error) => page.errors.push(String(error)));
  page.on("request", (request) => request.url().startsWith(`http://${ADDRESS}/`) || page.errors.push(`a request to ${request.url()}`));
  await page.goto(`http://${ADDRESS}/${fragment}`);
  return page;
}

async function enter(page, token) {
  await page.locator("#token[open]").waitFor();
  await page.fill("#token-value", token);
  await page.keyboard.press("Enter");
}

async function shows(page, selector, text) {
  await page.locator(selector, { hasText: text }).first().waitFor({ timeout: 60_000 });
}

const scenarios = {
  /** A user who declines to enter a token is not asked again, and the link to the page keeps the page. */
  async declined(browser) {
    const page = await open(browser);
    await page.locator("#token[open]").waitFor();
    await page.keyboard.press("Escape");
    // The dialog tells the page later that it was closed, and a request meanwhile would not ask again.
    await shows(page, "#connection", "there is no admin token");
    await page.clock.install();
    await page.evaluate(() => { location.hash = "#/client/alice"; });
    await page.locator("#token[open]").waitFor();
    await page.keyboard.press("Escape");
    await shows(page, "#budgets", "there is no admin token");
    await page.clock.runFor(60_000);
    assert.equal(await page.locator("#token[open]").count(), 0);
    await page.locator(".skip").focus();
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "page");
    await shows(page, "#client-name", "alice");
    return page;
  },

  /** Numbers follow traffic over all three protocols, in both themes and on a telephone. */
  async numbers(browser) {
    const page = await open(browser, { colorScheme: "light" });
    await page.locator("#token[open]").waitFor();
    await page.keyboard.press("Escape");
    await shows(page, "#connection", "there is no admin token");
    await page.click("#enter-token");
    await enter(page, "not-the-right-token");
    await shows(page, "#token-reason", "The server refused this token.");
    await enter(page, TOKEN);
    await shows(page, "#connection", "live");
    await ask("traffic");
    await shows(page, "#allowed", "30 since the start");
    // Pictures at once, while the traffic is that of the last second.
    for (const colorScheme of ["dark", "light"]) {
      await page.emulateMedia({ colorScheme });
      await page.screenshot({ path: `${SCREENSHOTS}/dashboard-${colorScheme}.png` });
    }
    await shows(page, "#denied", "6 since the start, 17 % in the last minute");
    await shows(page, "#shadow", "1 since the start");
    for (const [client, denials] of [["alice", 2], ["bob", 2], ["carol", 2]]) {
      await shows(page, "#most-denied tr", new RegExp(`^${client}per-client${denials}$`));
    }
    await shows(page, "#state", "of 1,000,000");
    await shows(page, "#rules tr", /per-client.*10\/minute fixed/);
    // The keyboard's focus survives the next snapshot.
    await page.locator("#most-denied a", { hasText: "bob" }).focus();
    const drawn = await page.textContent("#state");
    await page.waitForFunction((before) => document.querySelector("#state").textContent !== before, drawn);
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "bob");
    const colour = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await colour();
    await page.emulateMedia({ colorScheme: "dark" });
    assert.notEqual(await colour(), light, "two themes");
    await page.setViewportSize({ width: 360, height: 740 });
    const [inner, outer] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    assert.ok(inner <= outer, `a telephone does not scroll sideways: ${inner} of ${outer}`);
    return page;
  },

  /** Block, reset and limit work, and the next request sees them. */
  async administration(browser) {
    const page = await open(browser);
    await enter(page, TOKEN);
    await shows(page, "#connection", "live");
    await page.fill("#find-client", "alice");
    await page.keyboard.press("Enter");
    await shows(page, "#budgets", "10 of 10");
    assert.equal(await ask("check alice"), "200");
    await page.click("#block-form button.danger");
    await shows(page, "#message", "Blocked until 2");
    assert.equal(await ask("check alice"), "429");
    await shows(page, "#budgets", "blocked, admitted in");
    await shows(page, "#denials", "per-client");
    await page.screenshot({ path: `${SCREENSHOTS}/client.png` });
    await page.click("#unblock");
    await shows(page, "#message", "Unblocked.");
    assert.equal(await ask("check alice"), "200");
    await page.fill("#limit-form input", "1/hour fixed");
    await page.click("#limit-form button:not([type])");
    await shows(page, "#message", "Set on this server, until it stops.");
    assert.equal(await ask("check alice"), "429");
    await page.click("#clear-limit");
    await shows(page, "#message", "The rules' limits apply again.");
    await page.click("#reset");
    await shows(page, "#message", "Reset.");
    await shows(page, "#budgets", "10 of 10");
    await page.fill("#limit-form input", "1/fortnight");
    await page.click("#limit-form button:not([type])");
    await shows(page, "#message", "fortnight");
    return page;
  },

  /** A hostile name is text on every page. */
  async hostile(browser) {
    const page = await open(browser);
    await enter(page, TOKEN);
    await ask(`hostile ${encodeURIComponent(HOSTILE)}`);
    const shown = HOSTILE.replace("\u202e", "\\u{202e}").replace("\u0007", "\\u{7}");
    await shows(page, "#most-denied", shown);
    await page.locator("#most-denied a").first().click();
    await shows(page, "#client-name", shown);
    await shows(page, "#budgets", "0 of 10");
    await page.click("text=Explain a request of this client");
    await page.click("form.fields button");
    await shows(page, "#verdict", "Denied: by per-client.");
    await shows(page, ".uncovered", "the request has no path; it must be /login");
    assert.equal(await page.locator("#page img").count(), 0);
    assert.notEqual(await page.title(), "owned");
    await page.click("nav a[href='#/playground']");
    await shows(page, "#summary", "10/10s fixed: ");
    const before = await page.textContent("#summary");
    await page.selectOption("#pattern", "steady");
    await page.locator("#summary", { hasNotText: before }).waitFor();
    await shows(page, "#summary", "of 80 get through.");
    return page;
  },

  /** The stream comes back after a restart. */
  async restart(browser) {
    const page = await open(browser);
    await enter(page, TOKEN);
    await ask("check alice");
    await shows(page, "#allowed", "1 since the start");
    await ask("stop");
    await shows(page, "#connection[data-state=lost]", "");
    await ask("start");
    await shows(page, "#connection[data-state=live]", "live");
    await shows(page, "#allowed", "0 since the start");
    return page;
  },

  /** A one-time code becomes a session that reads, once, and a change still needs the token. */
  async session(browser) {
    const fragment = `#/code/${await ask("code")}`;
    const page = await open(browser, {}, fragment);
    await shows(page, "#connection", "live");
    assert.equal(await page.evaluate(() => location.hash), "#/", "the code is not in the history");
    assert.equal(await page.evaluate(() => document.cookie), "", "no script reads the session");
    const [cookie] = await page.context().cookies();
    assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.path], [true, "Strict", "/"]);
    await page.reload();
    await shows(page, "#connection", "live");
    await page.click("nav a[href='#/explain']");
    await page.fill("#find-client", "alice");
    await page.keyboard.press("Enter");
    await shows(page, "#budgets", "10 of 10");
    assert.equal(await page.locator("#token[open]").count(), 0);
    await page.click("#block-form button.danger");
    await shows(page, "#token-reason", "A change needs the admin token.");
    const other = await open(browser, {}, fragment);
    await shows(other, "#token-reason", "this address was used already");
    assert.deepEqual(other.errors, [], "no console errors");
    return page;
  },

  /** An hour of events leaves no memory behind. */
  async memory(browser) {
    const page = await open(browser);
    await enter(page, TOKEN);
    await shows(page, "#rules", "per-client");
    const devtools = await page.context().newCDPSession(page);
    const kilobytes = async () => {
      await devtools.send("HeapProfiler.collectGarbage");
      return (await devtools.send("Runtime.getHeapUsage")).usedSize / 1024;
    };
    const snapshot = JSON.parse(await ask("snapshot"));
    const played = (many) => {
      const event = (at) => `event: snapshot\ndata: ${JSON.stringify({ ...snapshot, at, uptimeMs: at })}\n\n`;
      return Array.from({ length: many }, (_, at) => event(at)).join("");
    };
    /** Replays events in place of the server's, and waits for the last. */
    const replay = async (many) => {
      await page.unrouteAll();
      let isServed = false;
      await page.route("**/v1/live", (route) => {
        if (isServed) return route.abort();
        isServed = true;
        return route.fulfill({ contentType: "text/event-stream", body: played(many) + `event: snapshot\ndata: ${JSON.stringify({ ...snapshot, version: `end ${many}` })}\n\n` });
      });
      await ask("stop");
      await shows(page, "#state", `version end ${many}`);
      await ask("start");
      return kilobytes();
    };
    const [warm, after] = [await replay(200), await replay(3600)];
    assert.ok(after < warm + 1024, `${warm} KiB, then ${after} KiB`);
    return page;
  },
};

const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
try {
  const page = await scenarios[process.argv[2]](browser);
  assert.deepEqual(page.errors, [], "no console errors");
  process.stdout.write("passed\n");
} finally {
  await browser.close();
}
process.exit(0);
