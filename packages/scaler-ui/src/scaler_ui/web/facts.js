// Values with names; the server replaces the values, and what has the focus keeps it.
export default {
  template: `<dl class="facts">
    <div v-for="fact in facts" :key="fact.name">
      <dt>{{ fact.name }}</dt>
      <dd :class="fact.name === 'state' && 'is-' + fact.text" :data-testid="'fact-' + fact.name"
        ><a v-if="fact.href" class="nicegui-link" :href="fact.href">{{ fact.text }}</a
        ><template v-else>{{ fact.at ? when(fact.at) : fact.text }}</template></dd>
    </div>
  </dl>`,
  props: { facts: Array },
  methods: { when: (at) => new Date(1000 * at).toLocaleString("sv-SE") },
};
