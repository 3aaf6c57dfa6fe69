"""The live page in headless Chromium, over a replay that has ended and is held: what the page shows is what the API
says; all of it by keyboard; both themes; two widths. Exit code 77: skipped, as something that it needs is not here.

    live_page_test.py SERINUS TRACE [--screenshot FILE]
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select, WebDriverWait
except ImportError:
    print("skipped: python3-selenium is not installed")
    sys.exit(77)

PATIENCE = 60  # s, for machines that do other things as well
failures = []


def check(claim, got, want=True):
    if got != want:
        failures.append(claim)
        print(f"FAILED: {claim}\n  got  {got!r}\n  want {want!r}")


class Replay:
    """A replay that ended and is held, or one that runs at a pace; and its API."""

    def __init__(self, command, trace, pace=None):
        arguments = "--requests 60 --faults all:30 --pool-tokens 150000 --host-tokens 100000 --draft-layers 1"
        arguments = arguments.split() + ["--serve", "0", "--hold"] + (["--pace", str(pace)] if pace else [])
        self.process = subprocess.Popen([command, "replay", trace, *arguments],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.url = None
        for line in self.process.stderr:
            found = re.search(r"serving (http://\S+)", line)
            if found:
                self.url = found.group(1)
            if line.startswith("still serving") or (pace and found):
                return
        raise SystemExit(f"the replay ended early: {self.process.returncode}")

    def text(self, path):
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as answer:
            return answer.read().decode()

    def json(self, path):
        return json.loads(self.text(path))

    def end(self):
        self.process.send_signal(signal.SIGINT)
        out, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out


def browser():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver") or "/usr/lib/chromium-browser/chromedriver"
    if not chromium or not os.path.exists(driver):
        print("skipped: chromium and chromium-driver are not installed")
        sys.exit(77)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(service=Service(driver), options=options)


class Page:
    def __init__(self, driver, url):
        self.driver, self.url = driver, url

    def emulate(self, width, height, scheme, motion="no-preference"):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                    {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": motion}]})

    def open(self, path=""):
        self.driver.get(self.url + path)

    def open_live(self):
        self.open()
        self.wait(lambda: self.all(".pool canvas") and self.js("return document.body.dataset.state") == "ended")

    def wait(self, condition):
        WebDriverWait(self.driver, PATIENCE).until(lambda _: condition())

    def js(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.js("return document.querySelector(arguments[0]).textContent", selector)

    def number(self, selector):
        return int(re.sub(r"\D", "", self.text(selector)))

    def press(self, *keys):
        self.driver.switch_to.active_element.send_keys(*keys)

    def focused(self):
        return self.js("const e = document.activeElement; return e.id || e.className || e.tagName")

    def fits(self):
        return self.js("return document.documentElement.scrollWidth <= innerWidth")


def test_counters(page, replay):
    stats = replay.json("api/stats")
    for name in ["slots_protected", "violations", "steps"]:
        check(f"counter {name}", page.number(f'[data-counter="{name}"]'), stats[name])
    digits = re.sub(r"[^\d.]", "", page.text('[data-counter="entries_verified"]'))
    check("counter entries_verified", str(stats["entries_verified"]).startswith(digits.replace(".", "")[:2]))
    check("headline", re.sub(r"\s", " ", page.text("#headline")), f"{stats['violations']} violations found")
    check("engine", stats["engine"]["name"] in page.text("#engine"))
    samples = dict(re.findall(r"^(\w+) (\S+)$", replay.text("metrics"), re.M))
    check("metrics: steps", int(samples["serinus_steps_total"]), stats["steps"])
    check("metrics: verified", int(samples["serinus_entries_verified_total"]), stats["entries_verified"])


def test_metrics_with_a_parser(replay):
    try:
        from prometheus_client.parser import text_string_to_metric_families as parse
    except ImportError:
        print("python3-prometheus-client is not installed: its parser is left out")
        return
    families = {f.name: f for f in parse(replay.text("metrics"))}
    stats = replay.json("api/stats")
    check("parser: type", families["serinus_steps"].type, "counter")
    check("parser: checks", {s.labels["moment"]: s.value for s in families["serinus_checks"].samples}, stats["checks"])
    by_reason = {(s.labels["pool"], s.labels["reason"]): s.value for s in families["serinus_violations"].samples}
    for pool in replay.json("api/pools")["pools"]:
        for reason, n in pool["violations"].items():
            check(f"parser: {reason} of {pool['name']}", by_reason[pool["name"], reason], n)
    check("parser: all have help", [f.name for f in families.values() if not f.documentation], [])


def test_pools(page, replay):
    for pool in replay.json("api/pools")["pools"]:
        card = f'.pool[data-pool="{pool["pool"]}"]'
        check("pool name", page.text(f"{card} h2"), f"Pool {pool['name']}")
        counts = dict(pool["counts"], request=pool["counts"]["written"] - pool["counts"]["cached"],
                      violations=sum(pool["map"]["violations"]))
        del counts["written"]
        for kind, n in counts.items():
            check(f"legend {kind} of {pool['name']}", page.number(f"{card} .legend .{kind} b"), n)
        page.js("document.querySelector(arguments[0]).open = true", f"{card} details")
        page.wait(lambda: page.all(f"{card} tbody tr"))
        table = [[int(re.sub(r"\D", "", cell)) for cell in row] for row in page.js(
            "return [...document.querySelectorAll(arguments[0])].map(r => [...r.cells].slice(1).map(c => c.textContent))",
            f"{card} tbody tr")]
        sums = [sum(column) for column in zip(*table)]
        check(f"table of {pool['name']}", sums, [counts[k] for k in ["request", "cached", "empty", "free", "violations"]])
        page.js("document.querySelector(arguments[0]).open = false", f"{card} details")


def test_violations(page, replay):
    answer = replay.json("api/violations?limit=200")["violations"]
    shown = page.js("return [...document.querySelectorAll('#violations li')].map(li => "
                    "({number: Number(li.dataset.number), text: li.textContent, "
                    "links: [...li.querySelectorAll('a')].map(a => [a.textContent, a.getAttribute('href')])}))")
    check("violations listed", [v["number"] for v in shown], [v["number"] for v in reversed(answer)])
    for line, v in zip(shown, reversed(answer)):
        check(f"violation {v['number']}: reasons", line["links"],
              [[r, f"/errors/{p}"] for r, p in zip(v["reasons"], v["pages"])])
        wanted = [v["moment"], v["note"]] + ([f"slot {v['slot']} of {v['pool']}"] if v["slot"] >= 0 else [])
        check(f"violation {v['number']}: text", all(w in line["text"] for w in wanted))
    for page_slug in {p for v in answer for p in v["pages"]}:
        check(f"page {page_slug}", page_slug in replay.text(f"errors/{page_slug}"))
    reason = answer[-1]["reasons"][0]
    Select(page.one("#filter")).select_by_value(reason)
    visible = page.js("return [...document.querySelectorAll('#violations li')].filter(li => !li.hidden).length")
    check("filter", visible, sum(reason in v["reasons"] for v in answer))
    Select(page.one("#filter")).select_by_value("")


def test_slot(page, replay):
    violation = next(v for v in reversed(replay.json("api/violations?limit=200")["violations"]) if v["slot"] > 0)
    item = f'#violations li[data-number="{violation["number"]}"] button'
    page.js("document.querySelector(arguments[0]).click()", item)
    page.wait(lambda: page.js("return document.querySelector('#slot').dataset.slot") == str(violation["slot"]))
    answer = replay.json(f"api/pools/{violation['pool_number']}/slots/{violation['slot']}")
    rows = page.js("return Object.fromEntries([...document.querySelectorAll('#slot tbody tr')].map(r => "
                   "[r.cells[0].textContent.replace(' (differ)', ''), [r.cells[1].textContent, r.cells[2].textContent]]))")
    record, ledger = answer["record"] or {}, answer["ledger"] or {}
    if not record.get("chain", "").strip("0"):  # erased
        record = {}
    text = lambda value: "" if value is None else str(value)
    for row, key in [("owner", "owner_name"), ("position", "position"), ("generation", "generation")]:
        check(f"slot: {row}", rows[row], [text(record.get(key)), text(ledger.get(key))])
    for row, key in [("token", "token"), ("chain", "chain"), ("digest", "kv_digest")]:
        check(f"slot: {row}", rows[row][0], text(record.get(key)))
    check("slot: events", all(e["text"] in page.text("#slot") for e in answer["events"]))
    check("slot: its violations", len(page.all("#slot .reasons")), len(answer["violations"]))
    page.js("document.querySelector('#ask-slot').value = ''")


def test_keyboard(page, replay):
    """From the top of the page to a slot, its neighbour, and the page of a reason, without a mouse."""
    page.open_live()
    page.one("body").send_keys(Keys.TAB)
    check("the first stop", page.focused(), "skip")
    for _ in range(12):
        if page.focused() == "CANVAS":
            break
        page.press(Keys.TAB)
    check("the map can be reached", page.focused(), "CANVAS")
    value = lambda: int(page.js("return document.activeElement.getAttribute('aria-valuenow')"))
    cells = replay.json("api/pools/0")["map"]["cells"]
    page.press(Keys.END)
    check("End", value(), cells - 1)
    page.press(Keys.HOME, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    check("arrows", value(), 2)
    page.press(Keys.ARROW_DOWN)
    check("down a row", value() > 2)
    page.press(Keys.ARROW_UP)
    per_cell = replay.json("api/pools/0")["map"]["slots_per_cell"]
    spoken = page.js("return document.activeElement.getAttribute('aria-valuetext')")
    check("what is read aloud", re.sub(r"\s", " ", spoken).startswith(f"slots {2 * per_cell} to {3 * per_cell - 1}: "))
    page.press(Keys.ENTER)
    page.wait(lambda: page.js("return document.querySelector('#slot').dataset.slot") is not None)
    slot = int(page.js("return document.querySelector('#slot').dataset.slot"))
    check("Enter looks at the cell", 2 * per_cell <= slot < 3 * per_cell)
    page.one("#ask-slot").clear()
    page.one("#ask-slot").send_keys("70", Keys.ENTER)
    page.wait(lambda: page.js("return document.querySelector('#slot').dataset.slot") == "70")
    check("the same slot as the API's", replay.json("api/pools/0/slots/70")["record"]["chain"] in page.text("#slot"))
    page.one("#violations .reasons a").send_keys(Keys.ENTER)
    page.wait(lambda: "/errors/" in page.driver.current_url)
    check("a heading", len(page.all("h1")), 1)


# Every control has a name, every picture a text, every table a head, and the page one first heading.
ACCESSIBLE = """
const bad = [];
for (const e of document.querySelectorAll('button, a, select, input, canvas, svg[role], [role=slider]')) {
  if (e.closest('[hidden]')) continue;
  const name = e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && [...e.labels].map(l => l.textContent).join(' '));
  if (!name) bad.push(e.outerHTML.slice(0, 80));
}
for (const i of document.images) if (i.getAttribute('alt') === null) bad.push(i.src);
for (const t of document.querySelectorAll('table')) if (!t.querySelector('th[scope=col]')) bad.push('a table without a head');
if (document.querySelectorAll('h1').length !== 1) bad.push('not one h1');
if (!document.documentElement.lang) bad.push('no language');
const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
if (new Set(ids).size !== ids.length) bad.push('an id twice');
return bad;
"""

# The contrast of what is read with what lies behind it.
CONTRAST = """
const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const rgba = (colour) => {
  context.clearRect(0, 0, 1, 1);
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data];
};
const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const c = rgba(getComputedStyle(e).backgroundColor);
    if (c[3] === 255) return c;
  }
  return [255, 255, 255];
};
const bad = {};
for (const e of document.querySelectorAll('body *')) {
  if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || !e.checkVisibility()) continue;
  if (e.closest('button:disabled, noscript, option, .skip, .hidden-text')) continue;
  const [a, b] = [light(rgba(getComputedStyle(e).color)), light(behind(e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) bad[`${e.tagName} ${e.className} ${e.textContent.slice(0, 20)}`] = ratio.toFixed(2);
}
return bad;
"""


def test_themes_and_widths(page):
    background = lambda: page.js("return getComputedStyle(document.body).backgroundColor")
    for scheme in ["light", "dark"]:
        for width in [400, 1600]:
            page.emulate(width, 1000, scheme)
            for path in ["", "errors", "errors/violation-kv-bytes"]:
                page.open_live() if not path else page.open(path)
                where = f"/{path}, {scheme}, {width} px"
                check(f"fits: {where}", page.fits())
                check(f"accessible: {where}", page.js(ACCESSIBLE), [])
                check(f"contrast: {where}", page.js(CONTRAST), {})
        as_the_system = background()
        page.one("#theme").click()  # light
        light = background()
        page.one("#theme").click()  # dark
        dark = background()
        check("two themes", light != dark)
        check(f"auto is {scheme}", as_the_system, {"light": light, "dark": dark}[scheme])
        page.open("errors/violation-stale")
        check("the choice stays", background(), dark)
        page.one("#theme").click()  # auto again
    page.emulate(1600, 1000, "light", "reduce")
    page.open_live()
    page.js("document.querySelector('#violations li').classList.add('new')")
    check("no motion where none is wanted",
          page.js("return getComputedStyle(document.querySelector('#violations li.new')).animationName"), "none")


def test_a_drop(page, replay):
    """The server is gone, then the page says so; what it shows stays."""
    page.open_live()
    before = page.js("return document.querySelectorAll('#violations li').length")
    page.driver.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    page.wait(lambda: page.one("#lost").is_displayed())
    check("what was found stays", page.js("return document.querySelectorAll('#violations li').length"), before)
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", dict(offline, offline=False))
    page.wait(lambda: not page.one("#lost").is_displayed())
    check("nothing is listed twice", page.js("return document.querySelectorAll('#violations li').length"), before)


def test_alone(page, command):
    server = subprocess.Popen([command, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        page.driver.get(re.search(r"http://\S+", server.stdout.readline()).group())
        page.wait(lambda: page.text("#headline") != "Looking…")
        check("alone: headline", page.text("#headline"), "No engine here")
        check("alone: says how to see one", page.one("#alone").is_displayed())
        check("alone: no empty dashboard", page.one("#live").is_displayed(), False)
    finally:
        server.send_signal(signal.SIGTERM)
        check("alone: ends well", server.wait(PATIENCE), 0)


def screenshot(driver, replay, file):
    """A picture of a run in its middle, for the README."""
    page = Page(driver, replay.url)
    page.emulate(1280, 800, "light")
    deadline = time.monotonic() + PATIENCE
    on_a_slot = lambda: [v for v in replay.json("api/violations")["violations"] if v["slot"] > 0]
    while len(on_a_slot()) < 12 and time.monotonic() < deadline:
        time.sleep(0.2)
    page.open()
    violation = on_a_slot()[-1]
    page.wait(lambda: page.all(f'#violations li[data-number="{violation["number"]}"] button'))
    page.js("document.querySelector(arguments[0]).click()", f'#violations li[data-number="{violation["number"]}"] button')
    page.wait(lambda: page.js("return document.querySelector('#slot').dataset.slot") is not None)
    time.sleep(5)  # some points for the charts
    page.driver.save_screenshot(file)


def main():
    command, trace = sys.argv[1:3]
    driver = browser()
    replay = None
    try:
        if sys.argv[3:4] == ["--screenshot"]:
            replay = Replay(command, trace, pace=120)
            screenshot(driver, replay, sys.argv[4])
            return 0
        replay = Replay(command, trace)
        page = Page(driver, replay.url)
        page.emulate(1600, 1000, "light")
        page.open_live()
        test_counters(page, replay)
        test_metrics_with_a_parser(replay)
        test_pools(page, replay)
        test_violations(page, replay)
        test_slot(page, replay)
        test_keyboard(page, replay)
        test_themes_and_widths(page)
        page.emulate(1600, 1000, "light")
        test_a_drop(page, replay)
        complaints = [e["message"] for e in driver.get_log("browser") if "INTERNET_DISCONNECTED" not in e["message"]]
        check("the browser's console is silent", complaints, [])
        test_alone(page, command)
        code, out = replay.end()
        replay = None
        check("Ctrl-C ends it in good order", code, 0)
        check("the summary came before", "false alarms: 0" in out)
    finally:
        driver.quit()
        if replay is not None:
            replay.process.kill()
    print("failed: %d" % len(failures) if failures else "all fine")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
