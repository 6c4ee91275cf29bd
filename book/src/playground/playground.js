// The page's controls for the partitioner, which module.js has as WebAssembly.
(function () {
  'use strict';
  var form = document.getElementById('pg-form');
  if (!form || typeof GPIPE_MODULE === 'undefined') { return; }
  var coded = atob(GPIPE_MODULE), bytes = new Uint8Array(coded.length);
  for (var at = 0; at < coded.length; at += 1) { bytes[at] = coded.charCodeAt(at); }
  var module = new WebAssembly.Instance(new WebAssembly.Module(bytes)).exports;
  var MIB = 1048576;

  // Writes a question into the module's memory, and reads the answer from it.
  function ask(question) {
    var text = new TextEncoder().encode(JSON.stringify(question));
    var to = module.gpipe_question(text.length);
    new Uint8Array(module.memory.buffer, to, text.length).set(text);
    var from = module.gpipe_answer();
    var answer = new Uint8Array(module.memory.buffer, from, module.gpipe_answer_length());
    return JSON.parse(new TextDecoder().decode(answer));
  }
  function number(name) { return Number(form.elements[name].value); }
  function question(schedule) {
    var chunks = form.elements.chunks.value;
    return {
      schedule: schedule,
      devices: number('devices'),
      micro_batches: number('micro'),
      chunks: chunks === '' ? null : Number(chunks),
      forward_us: number('forward') * 1000,
      input_us: number('input') * 1000,
      weight_us: number('weight') * 1000,
      activation_bytes: Math.round(number('activations') * MIB),
      output_bytes: Math.round(number('output') * MIB),
      recompute: form.elements.recompute.checked,
      link: form.elements.link.value
    };
  }
  function show(id, text) { document.getElementById(id).textContent = text; }
  function cell(row, tag, text) {
    var cell = row.appendChild(document.createElement(tag));
    if (typeof text === 'string') { cell.textContent = text; } else { cell.appendChild(text); }
    return cell;
  }
  function choose(row) {
    var button = document.createElement('button');
    button.type = 'button';
    button.textContent = row.name || row.schedule;
    button.addEventListener('click', function () {
      form.elements.schedule.value = row.schedule;
      draw();
    });
    return button;
  }
  function compare() {
    var body = document.getElementById('pg-rows');
    body.textContent = '';
    var rows = ask(question(null)).rows || [];
    // An error that all rows share is shown above.
    if (rows.every(function (row) { return row.refused; })) { return; }
    rows.forEach(function (row) {
      var line = body.appendChild(document.createElement('tr'));
      if (row.fastest) { line.className = 'best'; }
      if (row.schedule === form.elements.schedule.value) { line.setAttribute('aria-current', 'true'); }
      cell(line, 'th', choose(row)).scope = 'row';
      if (row.refused) { cell(line, 'td', row.refused).colSpan = 5; return; }
      [String(row.chunks), row.step, row.bubble, row.in_flight, row.memory].forEach(function (text) {
        cell(line, 'td', text);
      });
      if (row.fastest) { cell(line.cells[0], 'span', ' fastest').className = 'pg-mark'; }
    });
  }
  // Recreated each time, which removes the listeners of the previous picture.
  var holder = document.getElementById('pg-picture'), blank = holder.innerHTML;
  function picture(svg) {
    holder.innerHTML = blank;
    var chart = holder.querySelector('.chart');
    chart.innerHTML = svg;
    gpipePin(chart);
    gpipeZoom(chart);
  }
  function draw() {
    var answer = form.checkValidity()
      ? ask(question(form.elements.schedule.value))
      : { error: 'a number is missing or out of its range' };
    var failed = Boolean(answer.error);
    show('pg-error', failed ? answer.error : '');
    document.getElementById('pg-result').hidden = failed;
    if (!failed) {
      show('pg-step', answer.step);
      show('pg-bubble', answer.bubble);
      show('pg-flight', answer.in_flight);
      show('pg-memory', answer.memory);
      picture(answer.svg);
    }
    if (form.checkValidity()) { compare(); }
  }
  form.addEventListener('input', draw);
  form.addEventListener('submit', function (event) { event.preventDefault(); });
  draw();
  form.dataset.ready = 'yes';
})();
