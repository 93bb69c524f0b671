// Keeps the live page up to date: asks for the state a second after the last answer, and changes what has changed, so that
// focus, scroll positions and open tables stay. All texts come escaped from live.py.
'use strict';
(() => {
  const PAUSE_MS = 1000;
  const PATIENCE_MS = 10_000;
  const content = document.getElementById('content');
  const gone = document.getElementById('gone');
  let charts = ''; // the charts that are drawn, by the name that the server gave them

  const template = document.createElement('template');
  const morph = (old, fresh) => {
    if (old.nodeName !== fresh.nodeName || old.id !== fresh.id) return old.replaceWith(fresh);
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return undefined;
    }
    if (old.classList.contains('chart')) { // page.js draws in it
      if (old.style.height !== fresh.style.height) old.style.height = fresh.style.height;
      old.setAttribute('aria-label', fresh.getAttribute('aria-label'));
      return undefined;
    }
    if (old.dataset.table) return morph(old.firstChild, fresh.firstChild); // page.js fills the rest of it
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
    after.forEach((node, place) => { if (before[place]) morph(before[place], node); else old.append(node); });
    before.slice(after.length).forEach((node) => node.remove());
    return undefined;
  };

  const say = (text) => {
    if (gone.textContent !== text) gone.textContent = text;
    gone.hidden = !text;
    document.body.classList.toggle('is-gone', Boolean(text));
  };
  const ask = async () => {
    const answer = await fetch(`state?charts=${charts}`, { signal: AbortSignal.timeout(PATIENCE_MS), cache: 'no-store' });
    if (answer.status === 404) return say('This address is not valid any more. Open the one that lakegate status --web has printed last.');
    if (!answer.ok) throw new Error(answer.statusText);
    const state = await answer.json();
    template.innerHTML = `<div id="content">${state.html}</div>`;
    morph(content, template.content.firstChild);
    if (state.charts) globalThis.lakegate.show(state.charts);
    charts = state.name;
    return say('');
  };
  let since = new Date();
  const repeat = async () => {
    if (!document.hidden) {
      try {
        await ask();
        since = new Date();
      } catch {
        const at = since.toISOString().slice(11, 19);
        say(`lakegate status --web does not answer: it has ended, or is out of reach. This is the state of ${at} UTC.`);
      }
    }
    setTimeout(repeat, PAUSE_MS);
  };
  repeat();
})();
