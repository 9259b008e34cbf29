// Opens a page of `tollgate simulate` in chromium and prints what is on it as JSON.
// usage: node simulate_page.cjs PAGE DIRECTORY
const { chromium } = require("playwright-core");
const path = require("node:path");
const { pathToFileURL } = require("node:url");

const [page, directory] = process.argv.slice(2);
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

async function main() {
  const profile = path.join(directory, "profile");
  const browser = await chromium.launchPersistentContext(profile, {
    executablePath: "/usr/bin/chromium", headless: true, args: FLAGS, viewport: { width: 1100, height: 900 }, colorScheme: "light",
  });
  const tab = await browser.newPage();
  const problems = [], url = pathToFileURL(page).href;
  tab.on("console", (message) => ["error", "warning"].includes(message.type()) && problems.push(message.text()));
  tab.on("pageerror", (error) => problems.push(String(error)));
  tab.on("dialog", (dialog) => { problems.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  tab.on("request", (request) => request.url() !== url && !request.url().startsWith("data:") && problems.push(request.url()));
  await tab.goto(url);
  const seen = { problems };
  seen.summary = await tab.$$eval("#summary tbody tr", (rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
  seen.charts = await tab.$$eval("#charts svg", (charts) => charts.length);
  const background = () => tab.evaluate(() => getComputedStyle(document.body).backgroundColor);
  seen.light = await background();
  await tab.screenshot({ path: path.join(directory, "light.png") });
  await tab.emulateMedia({ colorScheme: "dark" });
  seen.dark = await background();
  await tab.screenshot({ path: path.join(directory, "dark.png") });
  const range = () => tab.textContent("#range");
  seen.whole = await range();
  await tab.focus("#charts svg");
  await tab.keyboard.press("+");
  seen.zoomed = await range();
  await tab.keyboard.press("0");
  seen.unzoomed = await range();
  // A drag over the middle third of the first chart.
  const chart = await tab.locator("#charts svg").first().boundingBox();
  const at = (share) => [chart.x + chart.width * share, chart.y + chart.height / 2];
  await tab.mouse.move(...at(1 / 3));
  await tab.mouse.down();
  await tab.mouse.move(...at(1 / 2));
  await tab.mouse.move(...at(2 / 3));
  await tab.mouse.up();
  seen.dragged = await range();
  // The right button selects nothing.
  await tab.mouse.click(...at(1 / 2), { button: "right" });
  await tab.keyboard.press("0");
  seen.undragged = await range();
  const option = tab.locator("#client option", { hasText: "<script>" }).first();
  if (await option.count()) await tab.selectOption("#client", await option.getAttribute("value"));
  seen.picked = await tab.textContent("#client-facts");
  seen.pdfBytes = (await tab.pdf()).length;
  await browser.close();
  console.log(JSON.stringify(seen));
}
main().catch((error) => { console.error(error); process.exit(1); });
